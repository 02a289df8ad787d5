// Measures where a worker's time goes: one kind at a time, and leaving one means entering another.
// Waits nest inside what waits (a Scope returns to the kind around it), so kinds add up to the
// time that passed. If a step asks for it, each stretch is also recorded as a span, for a timeline:
// two stores into memory allocated beforehand. For one thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/time_kind.h"

namespace shoal {

class TimeKindClock {
 public:
  struct Span {
    TimeKind kind = TimeKind::kStepWait;
    int32_t microbatch = -1;
    int32_t unit = -1;
    int32_t waited_for = -1;
    absl::Time start;
    absl::Duration duration;
  };
  // Per step; spans beyond it are counted.
  static constexpr size_t kMaxSpans = 1 << 16;
  // Shorter ones are omitted: getting what is there already is no wait.
  static constexpr absl::Duration kShortestSpan = absl::Microseconds(10);

  explicit TimeKindClock(Clock& clock) : clock_(clock), since_(clock.Now()) {}

  // Ends the current phase.
  void Enter(TimeKind kind) {
    const absl::Time now = clock_.Now();
    const double seconds = absl::ToDoubleSeconds(now - since_);
    seconds_[static_cast<size_t>(kind_)] += seconds;
    if (kind_ == TimeKind::kGetWait && waited_for_ >= 0) {
      const auto server = static_cast<size_t>(waited_for_);
      get_waits_.resize(std::max(get_waits_.size(), server + 1));
      get_waits_[server] += seconds;
    }
    Record(now);
    kind_ = kind;
    since_ = now;
    waited_for_ = -1;
  }
  // Whom the wait was for that ends now, as the kind counts them: a server or a stage. -1: nobody.
  void WaitedFor(int32_t who) { waited_for_ = who; }
  TimeKind kind() const { return kind_; }
  // Of phases that have ended.
  double seconds(TimeKind kind) const { return seconds_[static_cast<size_t>(kind)]; }
  const std::array<double, kTimeKinds>& all() const { return seconds_; }

  // Begins a step: turns the recording of spans on or off from here on; drops what was recorded.
  void Record(bool on) {
    recording_ = on;
    get_waits_.clear();
    spans_.clear();
    dropped_spans_ = 0;
    if (on) {
      spans_.reserve(kMaxSpans);
    }
  }
  // The microbatch of spans from here on; -1: none.
  void AtMicrobatch(int32_t microbatch) { microbatch_ = microbatch; }
  void AtUnit(int32_t unit) { unit_ = unit; }
  const std::vector<Span>& spans() const { return spans_; }
  // Of the step's time in kGetWait, seconds by the server that was waited for.
  const std::vector<double>& get_waits() const { return get_waits_; }
  int64_t dropped_spans() const { return dropped_spans_; }

  class Scope {
   public:
    Scope(TimeKindClock& clock, TimeKind kind) : clock_(clock), outer_(clock.kind()) {
      clock_.Enter(kind);
    }
    ~Scope() { clock_.Enter(outer_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    TimeKindClock& clock_;
    const TimeKind outer_;
  };

 private:
  void Record(absl::Time now) {
    if (!recording_ || now - since_ < kShortestSpan) {
      return;
    }
    if (spans_.size() == kMaxSpans) {
      ++dropped_spans_;
      return;
    }
    spans_.push_back({.kind = kind_,
                      .microbatch = microbatch_,
                      .unit = unit_,
                      .waited_for = waited_for_,
                      .start = since_,
                      .duration = now - since_});
  }

  Clock& clock_;
  TimeKind kind_ = TimeKind::kStepWait;
  absl::Time since_;
  std::array<double, kTimeKinds> seconds_ = {};
  bool recording_ = false;
  int32_t microbatch_ = -1;
  int32_t unit_ = -1;
  int32_t waited_for_ = -1;
  std::vector<double> get_waits_;
  std::vector<Span> spans_;
  int64_t dropped_spans_ = 0;
};

}  // namespace shoal

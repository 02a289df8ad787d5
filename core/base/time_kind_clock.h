// Measures where a worker's time goes: one kind at a time, and leaving one means entering another.
// Waits nest inside what waits (a Scope returns to the kind around it), so kinds add up to the
// time that passed. If a step asks for it, each stretch is also recorded as a span, for a timeline:
// two stores into memory allocated beforehand. For one thread.
#pragma once

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
    TimeKind kind = TimeKind::kOptimizerWait;
    int32_t microbatch = -1;
    int32_t unit = -1;
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
    seconds_[static_cast<size_t>(kind_)] += absl::ToDoubleSeconds(now - since_);
    Record(now);
    kind_ = kind;
    since_ = now;
  }
  TimeKind kind() const { return kind_; }
  // Of phases that have ended.
  double seconds(TimeKind kind) const { return seconds_[static_cast<size_t>(kind)]; }
  const std::array<double, kTimeKinds>& all() const { return seconds_; }

  // Turns the recording of spans on or off from here on; drops what was recorded.
  void Record(bool on) {
    recording_ = on;
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
                      .start = since_,
                      .duration = now - since_});
  }

  Clock& clock_;
  TimeKind kind_ = TimeKind::kOptimizerWait;
  absl::Time since_;
  std::array<double, kTimeKinds> seconds_ = {};
  bool recording_ = false;
  int32_t microbatch_ = -1;
  int32_t unit_ = -1;
  std::vector<Span> spans_;
  int64_t dropped_spans_ = 0;
};

}  // namespace shoal

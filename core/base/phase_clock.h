// Measures where a worker's time goes: one phase at a time, and leaving one means entering another.
// Waits nest inside what waits (a Scope returns to the phase around it), so phases add up to the
// time that passed. If a step asks for it, each stretch is also recorded as a span, for a timeline:
// two stores into memory allocated beforehand. For one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/phase.h"

namespace shoal {

class PhaseClock {
 public:
  struct Span {
    Phase phase = Phase::kOptimizerWait;
    int32_t microbatch = -1;
    int32_t unit = -1;
    absl::Time start;
    absl::Duration duration;
  };
  // Per step; spans beyond it are counted.
  static constexpr size_t kMaxSpans = 1 << 16;
  // Shorter ones are omitted: getting what is there already is no wait.
  static constexpr absl::Duration kShortestSpan = absl::Microseconds(10);

  explicit PhaseClock(Clock& clock) : clock_(clock), since_(clock.Now()) {}

  // Ends the current phase.
  void Enter(Phase phase) {
    const absl::Time now = clock_.Now();
    seconds_[static_cast<size_t>(phase_)] += absl::ToDoubleSeconds(now - since_);
    Record(now);
    phase_ = phase;
    since_ = now;
  }
  Phase phase() const { return phase_; }
  // Of phases that have ended.
  double seconds(Phase phase) const { return seconds_[static_cast<size_t>(phase)]; }
  const std::array<double, kPhases>& all() const { return seconds_; }

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
    Scope(PhaseClock& clock, Phase phase) : clock_(clock), outer_(clock.phase()) {
      clock_.Enter(phase);
    }
    ~Scope() { clock_.Enter(outer_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PhaseClock& clock_;
    const Phase outer_;
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
    spans_.push_back({.phase = phase_,
                      .microbatch = microbatch_,
                      .unit = unit_,
                      .start = since_,
                      .duration = now - since_});
  }

  Clock& clock_;
  Phase phase_ = Phase::kOptimizerWait;
  absl::Time since_;
  std::array<double, kPhases> seconds_ = {};
  bool recording_ = false;
  int32_t microbatch_ = -1;
  int32_t unit_ = -1;
  std::vector<Span> spans_;
  int64_t dropped_spans_ = 0;
};

}  // namespace shoal

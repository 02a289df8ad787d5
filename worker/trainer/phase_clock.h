// Where a worker's time goes: one phase at a time, and what leaves one enters another. Waits nest
// inside of what waits (a Scope comes back to the phase around it), so phases add up to the time
// that passed. It is also where a tracer will learn of spans. One thread.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "absl/time/time.h"
#include "common/clock.h"

namespace shoal::worker {

enum class Phase { kOptimizerWait, kData, kForward, kBackward, kGetWait, kPutWait };
inline constexpr size_t kPhases = 6;
// As the metric's label has them.
inline constexpr std::array<std::string_view, kPhases> kPhaseNames = {
    "optimizer_wait", "data", "forward", "backward", "get_wait", "put_wait"};

class PhaseClock {
 public:
  explicit PhaseClock(Clock& clock) : clock_(clock), since_(clock.Now()) {}

  // Ends the phase at hand.
  void Enter(Phase phase) {
    const absl::Time now = clock_.Now();
    seconds_[static_cast<size_t>(phase_)] += absl::ToDoubleSeconds(now - since_);
    phase_ = phase;
    since_ = now;
  }
  Phase phase() const { return phase_; }
  // Of phases that ended.
  double seconds(Phase phase) const { return seconds_[static_cast<size_t>(phase)]; }
  const std::array<double, kPhases>& all() const { return seconds_; }

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
  Clock& clock_;
  Phase phase_ = Phase::kOptimizerWait;
  absl::Time since_;
  std::array<double, kPhases> seconds_ = {};
};

}  // namespace shoal::worker

#include "core/base/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace shoal {
namespace {

class SteadyClock final : public Clock {
 public:
  absl::Time Now() const override {
    return wall_start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
  }
  void SleepFor(absl::Duration duration) override { absl::SleepFor(duration); }

 private:
  const absl::Time wall_start_ = absl::Now();
  const std::chrono::steady_clock::time_point steady_start_ = std::chrono::steady_clock::now();
};

}  // namespace

Clock& RealClock() {
  static SteadyClock clock;
  return clock;
}

absl::Time WallTime() { return absl::Now(); }

absl::Time ManualClock::Now() const {
  absl::MutexLock lock(&mutex_);
  return now_;
}

void ManualClock::SleepFor(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  const absl::Time until = now_ + duration;
  auto reached = [this, until]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return now_ >= until; };
  mutex_.Await(absl::Condition(&reached));
}

void ManualClock::Advance(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  now_ += duration;
}

}  // namespace shoal

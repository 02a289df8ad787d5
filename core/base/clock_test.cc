#include "core/base/clock.h"

#include <atomic>
#include <thread>

#include "gtest/gtest.h"

namespace shoal {
namespace {

TEST(ManualClock, SleeperWakesWhenTheClockReachesItsTime) {
  ManualClock clock;
  std::atomic<bool> awake{false};
  std::thread sleeper([&] {
    clock.SleepFor(absl::Seconds(10));
    awake = true;
  });
  while (!awake) {
    clock.Advance(absl::Seconds(1));
  }
  sleeper.join();
  EXPECT_GE(clock.Now(), absl::UnixEpoch() + absl::Seconds(10));
}

TEST(RealClock, NeverGoesBack) {
  absl::Time last = RealClock().Now();
  for (int i = 0; i < 1000; ++i) {
    const absl::Time now = RealClock().Now();
    EXPECT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace shoal

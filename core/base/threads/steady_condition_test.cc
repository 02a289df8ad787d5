#include "core/base/threads/steady_condition.h"

#include <thread>

#include "absl/base/thread_annotations.h"
#include "core/base/clock.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

TEST(SteadyCondition, ALimitEndsTheWaitWithTheMutexHeld) {
  absl::Mutex mutex;
  SteadyCondition condition;
  absl::MutexLock lock(&mutex);
  const absl::Time before = RealClock().Now();
  while (!condition.Wait(&mutex, absl::Milliseconds(20))) {  // may wake for nothing
  }
  EXPECT_GE(RealClock().Now() - before, absl::Milliseconds(20));
  mutex.AssertHeld();
}

TEST(SteadyCondition, ASignalEndsAWaitWithoutLimit) {
  absl::Mutex mutex;
  SteadyCondition condition;
  bool told = false;
  std::thread teller([&] {
    absl::MutexLock lock(&mutex);
    told = true;
    condition.SignalAll();
  });
  {
    absl::MutexLock lock(&mutex);
    while (!told) {
      EXPECT_FALSE(condition.Wait(&mutex, absl::InfiniteDuration()));
    }
  }
  teller.join();
}

}  // namespace
}  // namespace shoal

// The wall's clock of this program is set where the tests want it, for libraries too: by a
// clock_gettime of its own.
#include "core/base/threads/steady_await.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <ctime>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/threads/steady_condition.h"
#include "gtest/gtest.h"

namespace {
std::atomic<int64_t> jump_seconds{0};
}  // namespace

extern "C" int clock_gettime(clockid_t id, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, id, time));
  if (id == CLOCK_REALTIME) {
    time->tv_sec += jump_seconds.load();
  }
  return result;
}

namespace shoal {
namespace {

constexpr absl::Duration kShort = absl::Milliseconds(50);
constexpr absl::Duration kLong = absl::Minutes(10);

class SteadyAwait : public ::testing::TestWithParam<int64_t> {
 protected:
  SteadyAwait() {
    RealClock();
    jump_seconds = GetParam();
  }
  ~SteadyAwait() override { jump_seconds = 0; }

  // By neither of the clocks under test.
  static absl::Duration Since(std::chrono::steady_clock::time_point begun) {
    return absl::FromChrono(std::chrono::steady_clock::now() - begun);
  }

  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  absl::Mutex mutex_;
  bool told_ = false;
};

TEST_P(SteadyAwait, TheWallsClockHasJumped) {
  const absl::Duration off = absl::Now() - RealClock().Now() - absl::Seconds(GetParam());
  EXPECT_LT(absl::AbsDuration(off), absl::Seconds(30));
}

TEST_P(SteadyAwait, ALimitEndsTheWaitNeitherEarlyNorLate) {
  absl::MutexLock lock(&mutex_);
  EXPECT_FALSE(AwaitFor(&mutex_, absl::Condition(&told_), kShort));
  mutex_.AssertHeld();
  EXPECT_GE(Since(begun_), kShort);
  EXPECT_LT(Since(begun_), kLong);
}

TEST_P(SteadyAwait, AConditionEndsTheWait) {
  std::thread teller([this] {
    absl::SleepFor(kShort);
    absl::MutexLock lock(&mutex_);
    told_ = true;
  });
  {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(AwaitUntil(&mutex_, absl::Condition(&told_), RealClock().Now() + kLong));
    EXPECT_GE(Since(begun_), kShort);
  }
  teller.join();
}

TEST_P(SteadyAwait, AWaitOfNoTimeOnlyLooks) {
  absl::MutexLock lock(&mutex_);
  EXPECT_FALSE(AwaitFor(&mutex_, absl::Condition(&told_), absl::ZeroDuration()));
  EXPECT_FALSE(AwaitUntil(&mutex_, absl::Condition(&told_), absl::InfinitePast()));
  told_ = true;
  EXPECT_TRUE(AwaitFor(&mutex_, absl::Condition(&told_), -absl::InfiniteDuration()));
}

TEST_P(SteadyAwait, ASteadyConditionKeepsItsLimit) {
  absl::MutexLock lock(&mutex_);
  SteadyCondition condition;
  while (!condition.Wait(&mutex_, kShort)) {  // may wake for nothing
  }
  EXPECT_GE(Since(begun_), kShort);
  EXPECT_LT(Since(begun_), kLong);
}

TEST_P(SteadyAwait, ManyWaitsOnOneMutexEachKeepTheirLimit) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([this, i] {
      for (int round = 0; round < 20; ++round) {
        const auto begun = std::chrono::steady_clock::now();
        const absl::Duration limit = absl::Microseconds(100 * ((i * 7 + round) % 16));
        absl::MutexLock lock(&mutex_);
        EXPECT_FALSE(AwaitFor(&mutex_, absl::Condition(&told_), limit));
        EXPECT_GE(Since(begun), limit);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_LT(Since(begun_), kLong);
}

INSTANTIATE_TEST_SUITE_P(Jumps, SteadyAwait, ::testing::Values(0, 3600, -3600));

}  // namespace
}  // namespace shoal

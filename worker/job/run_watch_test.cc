#include "worker/job/run_watch.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

TEST(RunWatch, EndsALongStepOfARunThatIsOver) {
  std::atomic<int> asked = 0;
  absl::Notification ended;
  RunWatch watch({.patience = absl::Milliseconds(1),
                  .interval = absl::Milliseconds(1),
                  .look = absl::Milliseconds(1),
                  .is_over = [&] { return ++asked == 3; },
                  .end = [&] { ended.Notify(); }});
  watch.BeginStep();
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(asked, 3);
  watch.EndStep();
}

TEST(RunWatch, AsksNothingInShortStepsOrBetweenThem) {
  std::atomic<int> asked = 0;
  ManualClock clock;
  RunWatch watch({.patience = absl::Seconds(10),
                  .interval = absl::Milliseconds(1),
                  .look = absl::Milliseconds(1),
                  .is_over = [&] { return ++asked < 0; },
                  .end = [] { ADD_FAILURE() << "it is not over"; }},
                 clock);
  const auto let_it_look = [] { absl::SleepFor(absl::Milliseconds(20)); };
  for (int step = 0; step < 3; ++step) {
    watch.BeginStep();
    clock.Advance(absl::Seconds(9));
    let_it_look();
    watch.EndStep();
    clock.Advance(absl::Seconds(9));
    let_it_look();
  }
  EXPECT_EQ(asked, 0);
  watch.BeginStep();
  clock.Advance(absl::Seconds(10));
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (asked == 0 && absl::Now() < deadline) {
    let_it_look();
  }
  EXPECT_GT(asked, 0);
}

TEST(RunWatch, AsksInAShortStepThatLacksAServerForAsLongAsItDoes) {
  std::atomic<bool> lacks_server = false;
  std::atomic<int> asked = 0;
  absl::Notification ended;
  ManualClock clock;  // stands still
  RunWatch watch({.look = absl::Milliseconds(1),
                  .lacks_server = [&] { return lacks_server.load(); },
                  .is_over =
                      [&] {
                        EXPECT_TRUE(lacks_server);
                        lacks_server = ++asked != 2;
                        return asked == 4;
                      },
                  .end = [&] { ended.Notify(); }},
                 clock);
  lacks_server = true;
  EXPECT_FALSE(ended.WaitForNotificationWithTimeout(absl::Milliseconds(20)));
  EXPECT_EQ(asked, 0) << "of no step";
  watch.BeginStep();
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (lacks_server && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(asked, 2);
  lacks_server = true;
  EXPECT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(asked, 4);
}

}  // namespace
}  // namespace shoal::worker

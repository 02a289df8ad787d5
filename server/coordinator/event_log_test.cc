#include "server/coordinator/event_log.h"

#include <thread>

#include "gtest/gtest.h"

namespace shoal::server {
namespace {

proto::JobEvent Step(int64_t step) {
  proto::JobEvent event;
  event.mutable_step()->set_step(step);
  return event;
}

TEST(EventLogTest, NumbersFromOneAndReadsFromAnyNumber) {
  EventLog log;
  for (int64_t step = 1; step <= 5; ++step) {
    log.Append(Step(step));
  }
  const auto all = log.After(0);
  ASSERT_EQ(all.size(), 5U);
  EXPECT_EQ(all[0].number(), 1);
  const auto rest = log.After(3);
  ASSERT_EQ(rest.size(), 2U);
  EXPECT_EQ(rest[0].number(), 4);
  EXPECT_TRUE(log.After(5).empty());
  EXPECT_TRUE(log.After(500).empty());
  EXPECT_EQ(log.After(-7).size(), 5U);
}

TEST(EventLogTest, ForgetsTheOldest) {
  EventLog log(3);
  for (int64_t step = 1; step <= 10; ++step) {
    log.Append(Step(step));
  }
  const auto kept = log.After(0);
  ASSERT_EQ(kept.size(), 3U);
  EXPECT_EQ(kept[0].number(), 8);
  EXPECT_EQ(log.After(9).size(), 1U);
}

TEST(EventLogTest, AWaiterIsWokenByAnEventAndByClosing) {
  EventLog log;
  std::thread writer([&] { log.Append(Step(1)); });
  EXPECT_EQ(log.Wait(0, absl::Seconds(30)).size(), 1U);
  writer.join();
  std::thread closer([&] { log.Close(); });
  EXPECT_TRUE(log.Wait(1, absl::Seconds(30)).empty());
  closer.join();
  EXPECT_TRUE(log.closed());
  EXPECT_EQ(log.Wait(0, absl::Seconds(30)).size(), 1U);
}

}  // namespace
}  // namespace shoal::server

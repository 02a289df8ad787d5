#include "server/coordinator/record/event_log.h"

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
    log.Append({Step(step)});
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
  EventLog log({}, 1, nullptr, 3);
  for (int64_t step = 1; step <= 10; ++step) {
    log.Append({Step(step)});
  }
  const auto kept = log.After(0);
  ASSERT_EQ(kept.size(), 3U);
  EXPECT_EQ(kept[0].number(), 8);
  EXPECT_EQ(log.After(9).size(), 1U);
}

// What one saw of the first life goes on with the second, without a gap and without a repetition.
TEST(EventLogTest, ALaterLifeGoesOn) {
  std::vector<proto::JobEvent> saved;
  const EventLog::Save save = [&](const proto::JobEvent& event) { saved.push_back(event); };
  proto::JobEvent timeline;
  timeline.mutable_trace()->set_worker(1);
  EventLog first({}, 1, save);
  EXPECT_EQ(first.Append({Step(1)}), 1);
  EXPECT_EQ(first.Append({timeline, timeline, Step(2)}), 4);
  EXPECT_EQ(first.After(0).size(), 4U);
  ASSERT_EQ(saved.size(), 2U) << "timelines are not kept";

  EventLog second(saved, 2, save);
  EXPECT_TRUE(second.After(4).empty());
  ASSERT_EQ(second.After(1).size(), 1U);
  EXPECT_EQ(second.After(1)[0].step().step(), 2);
  EXPECT_EQ(second.Append({Step(3)}), 5);
  EXPECT_EQ(second.Append({Step(4)}, /*outlive=*/false), 6);
  EXPECT_EQ(second.After(0).size(), 4U);
  EXPECT_EQ(saved.size(), 3U);
  EXPECT_EQ(second.After(0).back().term(), 2);
  EXPECT_EQ(EventLog(saved).Append({Step(4)}), 6);

  // What was seen of the first life is lost: the second's are new all the same.
  EXPECT_EQ(second.NewAfter(9, /*term=*/1), 4);
  EXPECT_EQ(second.NewAfter(3, /*term=*/1), 3);
  EXPECT_EQ(second.NewAfter(5, /*term=*/2), 5);

  // So they are where a third life tells of it.
  const EventLog third(saved, 3, save);
  EXPECT_EQ(third.NewAfter(5, /*term=*/1), 4);
  EXPECT_EQ(third.NewAfter(9, /*term=*/2), 5);
}

TEST(EventLogTest, ShrinksToItsNewest) {
  EventLog log;
  for (int64_t step = 1; step <= 10; ++step) {
    log.Append({Step(step)});
  }
  log.Shrink(3 * log.After(9)[0].ByteSizeLong());
  EXPECT_EQ(log.After(0).size(), 3U);
  log.Shrink(0);
  EXPECT_EQ(log.After(0).size(), 1U);
}

TEST(EventLogTest, ForgetsTheOldestWhereTheyAreLarge) {
  EventLog log({}, 1, nullptr, 1000, /*capacity_bytes=*/10000);
  for (int64_t step = 1; step <= 10; ++step) {
    proto::JobEvent event;
    for (int span = 0; span < 100; ++span) {
      event.mutable_trace()->add_spans()->set_start_nanoseconds(span + 1);
    }
    ASSERT_GT(event.ByteSizeLong(), 1000U);
    log.Append({event, Step(step)});
  }
  const auto kept = log.After(0);
  EXPECT_GE(kept.size(), 3U);
  EXPECT_LE(kept.size(), 18U);
  EXPECT_EQ(kept.back().number(), 20);
}

TEST(EventLogTest, AWaiterIsWokenByAnEventAndByClosing) {
  EventLog log;
  std::thread writer([&] { log.Append({Step(1)}); });
  EXPECT_EQ(log.Wait(0, absl::Seconds(30)).size(), 1U);
  writer.join();
  std::thread closer([&] { log.Close(); });
  EXPECT_TRUE(log.Wait(1, absl::Seconds(30)).empty());
  closer.join();
  EXPECT_TRUE(log.closed());
  EXPECT_EQ(log.Wait(0, absl::Seconds(30)).size(), 1U);
}

TEST(EventLog, AStepIsToldAgainByALaterLifeAlone) {
  const auto of = [](int64_t term, int64_t step, double loss) {
    proto::JobEvent event;
    event.set_term(term);
    event.mutable_step()->set_step(step);
    event.mutable_step()->set_loss(loss);
    return event;
  };
  const proto::JobEvent told = of(2, 7, 1.5);
  EXPECT_TRUE(RepeatsStep(told, of(3, 7, 1.5)));
  EXPECT_TRUE(RepeatsStep(told, of(5, 7, 1.5)));
  EXPECT_FALSE(RepeatsStep(told, of(2, 7, 1.5))) << "done again after a loss";
  EXPECT_FALSE(RepeatsStep(told, of(3, 8, 1.5)));
  EXPECT_FALSE(RepeatsStep(told, of(3, 7, 1.25))) << "done again with another sum";
  EXPECT_FALSE(RepeatsStep(proto::JobEvent(), of(3, 7, 1.5)));
}

}  // namespace
}  // namespace shoal::server

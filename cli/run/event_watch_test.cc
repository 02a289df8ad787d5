#include "cli/run/event_watch.h"

#include "cli/testing/fake_coordinator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::cli {
namespace {

TEST(EventWatch, EveryEventComesOnceAcrossBrokenStreams) {
  FakeCoordinator coordinator(3);
  for (int64_t step = 1; step < 10; ++step) {
    coordinator.AddStep(step, 1.0);
  }
  coordinator.AddDone(10, false);
  EventWatch watch(coordinator.Connect(), FakeCoordinator::kJob, absl::Seconds(10),
                   /*as_told=*/false);
  for (int64_t number = 1; number <= 10; ++number) {
    const auto event = watch.Next(absl::Seconds(10));
    ASSERT_TRUE(event.has_value()) << number;
    EXPECT_EQ(event->number(), number);
  }
  EXPECT_FALSE(watch.Next(absl::Milliseconds(10)).has_value());
  EXPECT_TRUE(watch.status().ok());
  EXPECT_EQ(coordinator.streams(), 4);
}

TEST(EventWatch, AWrongTokenIsGivenUpAtOnce) {
  FakeCoordinator coordinator;
  EventWatch watch(coordinator.Connect(rpc::Token::Generate()), FakeCoordinator::kJob,
                   absl::Seconds(60), /*as_told=*/true);
  EXPECT_FALSE(watch.Next(absl::Seconds(10)).has_value());
  EXPECT_EQ(watch.status().code(), absl::StatusCode::kUnauthenticated) << watch.status();
}

TEST(EventWatch, ACoordinatorWithoutTheJobIsGivenUpAtOnce) {
  FakeCoordinator coordinator;
  EventWatch watch(coordinator.Connect(), "job-0", absl::Seconds(60), /*as_told=*/true);
  EXPECT_FALSE(watch.Next(absl::Seconds(30)).has_value());
  EXPECT_TRUE(absl::IsNotFound(watch.status()));
}

TEST(EventWatch, AVanishedCoordinatorIsGivenUpAfterThePatience) {
  FakeCoordinator coordinator;
  auto channel = coordinator.Connect();
  coordinator.Shutdown();
  EventWatch watch(std::move(channel), FakeCoordinator::kJob, absl::Milliseconds(300),
                   /*as_told=*/true);
  EXPECT_FALSE(watch.Next(absl::Seconds(30)).has_value());
  EXPECT_FALSE(watch.status().ok());
}

TEST(EventWatch, LeavingDoesNotWaitForAnEvent) {
  FakeCoordinator coordinator;
  const absl::Time start = absl::Now();
  {
    EventWatch watch(coordinator.Connect(), FakeCoordinator::kJob, absl::Seconds(10),
                     /*as_told=*/false);
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
}

}  // namespace
}  // namespace shoal::cli

// Stages that connect by themselves and then run steps of a pipeline.
#include "worker/pipeline/links/group_links.h"

#include <algorithm>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/plan/schedule/builders/testing/random_schedule.h"
#include "core/transport/testing/fault_transport.h"
#include "core/transport/testing/forwarding_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/pipeline/links/testing/group.h"
#include "worker/pipeline/testing/emulated_pipeline.h"

namespace shoal::worker {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

const EmulatedPipelineOptions kFast = {.seconds_per_unit = 1e-5};

plan::ScheduleCosts CostsOf(const plan::Schedule& schedule) {
  return {schedule.shape, {.forward = 1, .activation_bytes = 64, .offload_bytes = 64}};
}

void ExpectRuns(EmulatedPipeline& pipeline, const plan::Schedule& schedule, TestingGroup& group) {
  const StageReports reports = pipeline.RunStep(schedule, CostsOf(schedule), group.links());
  for (const absl::StatusOr<StageReport>& report : reports) {
    EXPECT_TRUE(report.ok()) << schedule.name << ": " << Describe(report.status());
  }
  EXPECT_EQ(pipeline.GradientsOtherThanOne(), "");
}

void PrepareAndRun(TestingGroup& group, const StepAttempt& attempt, EmulatedPipeline& pipeline,
                   const plan::Schedule& schedule) {
  ASSERT_THAT(group.Prepare(attempt, schedule), Each(IsOk()));
  ExpectRuns(pipeline, schedule, group);
}

std::vector<plan::Schedule> Schedules() {
  return {plan::OneForwardOneBackward(4, 6), plan::InterleavedOneForwardOneBackward(2, 3, 5),
          plan::UniformPipe(3, 2, 6), plan::ZeroBubbleV(3, 6)};
}

TEST(GroupLinks, EveryScheduleRunsOverThem) {
  for (const plan::Schedule& schedule : Schedules()) {
    TestingGroup group({.stages = schedule.shape.stages});
    EmulatedPipeline pipeline(schedule.shape, kFast);
    for (int64_t step = 1; step <= 3; ++step) {
      PrepareAndRun(group, {step, 1}, pipeline, schedule);
      pipeline.NextStep();
    }
  }
}

TEST(GroupLinks, ConnectionsAreKeptUntilAnAttemptFailsOrMessagesNeedMore) {
  std::atomic<int> calls = 0;
  TestingGroup group({.stages = 3, .spoil = [&](int, const auto&) {
                        ++calls;
                        return absl::OkStatus();
                      }});
  const plan::Schedule few = plan::OneForwardOneBackward(3, 2);
  const plan::Schedule many = plan::GPipe(3, 1, 20);
  EmulatedPipeline pipeline(few.shape, kFast);
  const auto calls_of = [&](const StepAttempt& attempt, const plan::Schedule& schedule) {
    const int before = calls;
    PrepareAndRun(group, attempt, pipeline, schedule);
    return calls - before;
  };
  EXPECT_GE(calls_of({1, 1}, few), 6);
  EXPECT_EQ(calls_of({2, 1}, few), 0);
  EXPECT_GE(calls_of({3, 1}, many), 6);
  EXPECT_EQ(calls_of({4, 1}, few), 0);
  EXPECT_EQ(calls_of({5, 1}, many), 0);
  EXPECT_GE(calls_of({5, 2}, few), 6);
}

TEST(GroupLinks, AFurtherRoundOfAnAttemptMayNeedMore) {
  TestingGroup group({.stages = 3});
  const plan::Schedule few = plan::OneForwardOneBackward(3, 2);
  EmulatedPipeline pipeline(few.shape, kFast);
  PrepareAndRun(group, {.step = 1, .attempt = 1}, pipeline, few);
  PrepareAndRun(group, {.step = 1, .attempt = 1, .round = 1}, pipeline, plan::GPipe(3, 1, 20));
  PrepareAndRun(group, {.step = 1, .attempt = 1, .round = 2}, pipeline, few);
}

// As if two of three shared a host.
TEST(GroupLinks, EachPairTakesTheFirstTransportThatConnectsIt) {
  TestingGroup group({.stages = 3, .transports = {{"shm", "tcp"}, {"shm", "tcp"}, {"tcp"}}});
  const plan::Schedule schedule = plan::InterleavedOneForwardOneBackward(3, 2, 4);
  EmulatedPipeline pipeline(schedule.shape, kFast);
  PrepareAndRun(group, {1, 1}, pipeline, schedule);
  EXPECT_EQ(group.stage(0).connections().fallbacks(), 1);  // to stage 2, over the wrap
  for (const auto& [stage, connection] : group.stage(0).connections().connections()) {
    EXPECT_EQ(connection.transport(), stage == 2 ? "tcp" : "shm");
  }
  EXPECT_EQ(group.stage(0).connections().connections().size(), 2U);
  EXPECT_EQ(group.stage(1).connections().fallbacks(), 1);
  EXPECT_EQ(group.stage(2).connections().fallbacks(), 2);
}

TEST(GroupLinks, NoCommonTransportIsToldWithEveryReason) {
  TestingGroup group(
      {.stages = 2, .transports = {{"shm"}, {"tcp"}}, .patience = {.timeout = absl::Seconds(1)}});
  const auto results = group.Prepare({1, 1}, plan::OneForwardOneBackward(2, 2));
  EXPECT_THAT(std::string(Message(results[0])),
              HasSubstr("no transport connects stage 0 (worker-10): tcp: not offered"));
  EXPECT_THAT(std::string(Message(results[1])),
              HasSubstr("stage 0 (worker-10) did not connect for step 1 attempt 1 in time"));
}

TEST(GroupLinks, AStageThatNeverComesIsNamedOnceTheTimeIsOver) {
  TestingGroup group({.stages = 2, .patience = {.timeout = absl::Milliseconds(100)}});
  const std::vector<plan::MessageQueue> queues =
      plan::MessageQueues(plan::OneForwardOneBackward(2, 2));
  for (const int stage : {0, 1}) {
    const absl::Time start = absl::Now();
    const absl::Status status = group.stage(stage).links().Prepare({1, 1}, queues);
    EXPECT_GE(absl::Now() - start, absl::Milliseconds(100));
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << Describe(status);
    EXPECT_THAT(std::string(Message(status)),
                HasSubstr(fmt::format("stage {} (worker-1{}) did not connect for step 1 attempt 1 "
                                      "in time",
                                      1 - stage, 1 - stage)));
  }
}

// Answers to calls that may be repeated are lost.
TEST(GroupLinks, LostAnswersAreAskedForAgain) {
  std::atomic<int> lost = 0;
  TestingGroup group({.stages = 3, .spoil = [&](int, const auto& request) {
                        const bool lose = request.offers().empty() && lost < 8 && ++lost % 2 == 1;
                        return lose ? Unavailable("lost") : absl::OkStatus();
                      }});
  const plan::Schedule schedule = plan::OneForwardOneBackward(3, 4);
  EmulatedPipeline pipeline(schedule.shape, kFast);
  PrepareAndRun(group, {1, 1}, pipeline, schedule);
  EXPECT_EQ(lost, 8);
}

// A connection breaks within a step: all stages fail, by name, and the next attempt reconnects.
TEST(GroupLinks, ABrokenConnectionFailsTheAttemptAndNotTheNext) {
  transport::FaultOptions faults = {.seed = 3, .break_after_operations = 12};
  TestingGroup group(
      {.stages = 3, .transports = {{"tcp"}}, .wrap = [&](std::unique_ptr<transport::Transport> t) {
         return transport::MakeFaultTransport(std::move(t), faults);
       }});
  const plan::Schedule longer = plan::OneForwardOneBackward(3, 24);
  const plan::Schedule shorter = plan::OneForwardOneBackward(3, 2);
  EmulatedPipeline pipeline(longer.shape, kFast);
  ASSERT_THAT(group.Prepare({1, 1}, longer), Each(IsOk()));
  for (const auto& report : pipeline.RunStep(longer, CostsOf(longer), group.links())) {
    EXPECT_FALSE(report.ok());
    EXPECT_THAT(std::string(Message(report.status())), HasSubstr("stage "));
  }
  pipeline.GradientsOtherThanOne();
  pipeline.NextAttempt();
  PrepareAndRun(group, {1, 2}, pipeline, shorter);
}

// A group without microbatches fails a step: the next step, with some, does not fail.
TEST(GroupLinks, AFailedAttemptWithoutMessagesCostsTheNextStepNone) {
  TestingGroup group({.stages = 3});
  const plan::Schedule schedule = plan::OneForwardOneBackward(3, 4);
  EmulatedPipeline pipeline(schedule.shape, kFast);
  PrepareAndRun(group, {1, 1}, pipeline, schedule);
  pipeline.NextStep();
  for (const int64_t attempt : {1, 2}) {
    for (const int stage : {0, 1, 2}) {
      group.stage(stage).links().Skip({2, attempt});
    }
    group.stage(1).links().Close(absl::UnavailableError("its pushes were not acknowledged"));
  }
  pipeline.NextStep();
  ASSERT_THAT(group.Prepare({3, 1}, schedule), Each(IsOk()));
  EXPECT_TRUE(group.stage(1).links().status().ok());
  ExpectRuns(pipeline, schedule, group);
}

// Nor does one whose messages go between other stages than in the failed attempt.
TEST(GroupLinks, AFailedAttemptSpendsTheConnectionsThatItHasNoUseFor) {
  TestingGroup group({.stages = 3});
  const plan::Schedule around = plan::InterleavedOneForwardOneBackward(3, 2, 6);
  const plan::Schedule straight = plan::OneForwardOneBackward(3, 4);
  EmulatedPipeline pipeline(around.shape, kFast);
  PrepareAndRun(group, {1, 1}, pipeline, around);
  pipeline.NextStep();
  ASSERT_THAT(group.Prepare({2, 1}, straight), Each(IsOk()));
  group.stage(0).links().Close(absl::UnavailableError("on purpose"));
  EXPECT_FALSE(group.stage(0).links().status().ok());
  ASSERT_THAT(group.Prepare({2, 2}, straight), Each(IsOk()));
  EXPECT_TRUE(group.stage(0).links().status().ok());
  EmulatedPipeline meanwhile(straight.shape, kFast);
  ExpectRuns(meanwhile, straight, group);
  ASSERT_THAT(group.Prepare({3, 1}, around), Each(IsOk()));
  pipeline.NextStep();
  ExpectRuns(pipeline, around, group);
}

// Exposes a device's memory and keeps it longer than anyone else, as if peers closed it late.
class LingeringTransport final : public transport::ForwardingTransport {
 public:
  LingeringTransport(std::unique_ptr<transport::Transport> inner, absl::Duration lingers)
      : ForwardingTransport(std::move(inner)),
        capabilities_(ForwardingTransport::capabilities()),
        lingers_(lingers),
        thread_([this] { Run(); }) {
    capabilities_.opens_gpus = {"GPU"};
  }
  ~LingeringTransport() override {
    stopping_.Notify();
    thread_.join();
  }

  const transport::Capabilities& capabilities() const override { return capabilities_; }
  absl::StatusOr<std::unique_ptr<transport::Connector>> Offer(
      const transport::ConnectionOptions& options) override {
    Keep(options);
    return ForwardingTransport::Offer(options);
  }
  absl::StatusOr<transport::Acceptance> Accept(
      const std::string& offer, const transport::ConnectionOptions& options) override {
    Keep(options);
    return ForwardingTransport::Accept(offer, options);
  }

 private:
  struct Kept {
    std::shared_ptr<transport::Region> region;
    absl::Time alone = absl::InfiniteFuture();  // since when it is the only owner
  };
  void Keep(const transport::ConnectionOptions& options) {
    absl::MutexLock lock(&mutex_);
    for (const std::shared_ptr<transport::Region>& region : options.exposed) {
      kept_.push_back({.region = region});
    }
  }
  void Run() {
    while (!stopping_.WaitForNotificationWithTimeout(absl::Milliseconds(1))) {
      absl::MutexLock lock(&mutex_);
      for (Kept& kept : kept_) {
        if (kept.region.use_count() == 1) {
          kept.alone = std::min(kept.alone, absl::Now());
        }
      }
      std::erase_if(kept_,
                    [this](const Kept& kept) { return absl::Now() >= kept.alone + lingers_; });
    }
  }

  transport::Capabilities capabilities_;
  const absl::Duration lingers_;
  absl::Mutex mutex_;
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mutex_);
  absl::Notification stopping_;
  std::thread thread_;
};

TestingGroup::Options Lingering(absl::Duration lingers) {
  return {.transports = {{"tcp"}},
          .wrap =
              [lingers](std::unique_ptr<transport::Transport> inner) {
                return std::make_unique<LingeringTransport>(std::move(inner), lingers);
              },
          .on_devices = true};
}

TEST(GroupLinks, ADeviceHoldsTheMemoryOfAConnectionOnceWhenItIsMadeAnew) {
  TestingGroup group(Lingering(absl::Milliseconds(100)));
  const plan::Schedule schedule = plan::OneForwardOneBackward(2, 4);
  EmulatedPipeline pipeline(schedule.shape, kFast);
  for (const int64_t attempt : {1, 2, 3}) {
    ASSERT_THAT(group.Prepare({1, attempt}, schedule), Each(IsOk()));
    for (const int stage : {0, 1}) {
      EXPECT_EQ(group.stage(stage).connections().connections().at(1 - stage).transport(), kCudaIpc);
      EXPECT_EQ(group.stage(stage).device().most_shared(), 1) << "attempt " << attempt;
    }
  }
  pipeline.NextAttempt();
  pipeline.NextAttempt();
  ExpectRuns(pipeline, schedule, group);
}

TEST(GroupLinks, ANeighbourThatDoesNotCloseItHoldsNobodyUp) {
  TestingGroup::Options options = Lingering(absl::Minutes(10));
  options.patience.parting = absl::Milliseconds(100);
  TestingGroup group(options);
  const plan::Schedule schedule = plan::OneForwardOneBackward(2, 4);
  for (const int64_t attempt : {1, 2}) {
    ASSERT_THAT(group.Prepare({1, attempt}, schedule), Each(IsOk()));
    EXPECT_EQ(group.stage(0).device().most_shared(), attempt);
  }
  options.patience.parting = absl::Minutes(10);
  TestingGroup patient(options);
  ASSERT_THAT(patient.Prepare({1, 1}, schedule), Each(IsOk()));
  std::thread cancel([&] {
    absl::SleepFor(absl::Milliseconds(50));
    for (const int stage : {0, 1}) {
      patient.stage(stage).connections().Cancel(absl::CancelledError("leaving"));
    }
  });
  EXPECT_THAT(patient.Prepare({1, 2}, schedule), Each(HasCode(absl::StatusCode::kCancelled)));
  cancel.join();
}

// One stage is at a later attempt than its neighbours wait for.
TEST(GroupLinks, WhoWaitsForAnAttemptThatIsOverStopsWaiting) {
  TestingGroup group({.stages = 2});
  const plan::Schedule schedule = plan::OneForwardOneBackward(2, 2);
  const std::vector<plan::MessageQueue> queues = plan::MessageQueues(schedule);
  absl::Status early;
  std::thread late([&] { early = group.stage(1).links().Prepare({1, 1}, queues); });
  std::thread ahead([&] { EXPECT_TRUE(group.stage(0).links().Prepare({1, 2}, queues).ok()); });
  late.join();
  EXPECT_TRUE(absl::IsAborted(early)) << Describe(early);
  EXPECT_TRUE(group.stage(1).links().Prepare({1, 2}, queues).ok());
  ahead.join();
}

TEST(GroupLinks, ACancelledStageStopsConnecting) {
  TestingGroup group({.stages = 2, .patience = {.timeout = absl::Minutes(10)}});
  const std::vector<plan::MessageQueue> queues =
      plan::MessageQueues(plan::OneForwardOneBackward(2, 2));
  for (const int stage : {0, 1}) {
    std::thread cancel(
        [&] { group.stage(stage).connections().Cancel(absl::CancelledError("leaving")); });
    const absl::Status status = group.stage(stage).links().Prepare({1, 1}, queues);
    EXPECT_TRUE(absl::IsCancelled(status)) << Describe(status);
    cancel.join();
  }
}

}  // namespace
}  // namespace shoal::worker

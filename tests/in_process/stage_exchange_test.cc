// Stages of a pipeline on fake GPUs that send their messages from GPU to GPU, by the fake
// NCCL or by copies in memory that they open of each other: they train the bits of those whose
// messages go over the transports, through the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/time/clock.h"
#include "tests/in_process/gpu_training.h"
#include "worker/collectives/nccl/fake_nccl/fake_nccl.h"

namespace shoal::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using worker::CountNccl;
using worker::SetFakeNccl;

class StageExchangeTest : public GpuTraining {
 protected:
  StageExchangeTest() {
    SetFakeNccl({});
    job_.service.accumulate = plan::Accumulate::kExact;
    // Several microbatches a step.
    EXPECT_TRUE(
        WriteSyntheticTokens(tokens_, plan::NamedShape("tiny")->vocabulary, 40, 60, /*seed=*/5)
            .ok());
    job_.train.minibatch_samples = 20;
    SetPipeline("1F1B", 1, 0);
  }
  void SetPipeline(const std::string& schedule, int64_t chunks, double offload) {
    job_.cluster.pipeline = {.stages = 2,
                             .chunks = chunks,
                             .schedule = schedule,
                             .offload = {offload},
                             .pace = {.forward_flops = 2e10,
                                      .backward_input_flops = 2e10,
                                      .backward_weights_flops = 2e10,
                                      .offload_bytes_per_second = 2e9,
                                      .reload_bytes_per_second = 2e9}};
  }
  ClusterRun OverTransports() {
    SetFakeNccl({.there = false});
    const ClusterRun run = OnGpus(2, 1);
    ExpectFallbacks(run, 1);
    ExpectBytesBy("shm", run);
    SetFakeNccl({});
    return run;
  }
  static void ExpectFallbacks(const ClusterRun& run, int count) {
    EXPECT_THAT(run.worker_metrics,
                HasSubstr(fmt::format("shoal_worker_exchange_fallbacks_total {}", count)));
  }
  // The first stage's, both ways, and by no other.
  static void ExpectBytesBy(const std::string& path, const ClusterRun& run) {
    for (const std::string direction : {"send", "receive"}) {
      EXPECT_THAT(run.worker_metrics,
                  ContainsRegex(fmt::format("shoal_worker_stage_bytes_total.direction=.{}.,"
                                            "path=.{}.. [1-9]",
                                            direction, path)));
    }
    for (const std::string other : {"nccl", "cuda_ipc", "shm", "tcp"}) {
      if (other != path) {
        EXPECT_THAT(
            run.worker_metrics,
            Not(ContainsRegex(fmt::format("shoal_worker_stage_bytes_total..*path=.{}", other))));
      }
    }
  }
  static void ExpectAllClosed(const transport::FakeGpuMemory& reach) {
    EXPECT_EQ(reach.open_shares, 0) << "left open";
    EXPECT_EQ(gpu::Counters().frees_of_opened, 0) << "gone while somebody had it open";
  }
  static void ExpectByNccl(const ClusterRun& run) {
    ExpectFallbacks(run, 0);
    ExpectBytesBy("nccl", run);
    EXPECT_GT(CountNccl().messages, 0);
    EXPECT_EQ(CountNccl().communicators, 0) << "left behind";
  }
};

TEST_F(StageExchangeTest, TrainsTheBitsOfStagesOverTransports) {
  const ClusterRun over = OverTransports();
  uint64_t seed = 2;
  for (const auto& [schedule, chunks] :
       {std::pair("1F1B", 1), std::pair("interleaved", 2), std::pair("ZB-V", 2)}) {
    for (const double offload : {0.0, plan::OffloadedChunks::kFull}) {
      SCOPED_TRACE(fmt::format("{} with {}", schedule, offload));
      SetPipeline(schedule, chunks, offload);
      SetFakeNccl({});
      const ClusterRun run = OnGpus(2, seed++);
      EXPECT_EQ(run.checksums, over.checksums);
      ExpectByNccl(run);
      EXPECT_EQ(CountNccl().aborted, 0);
    }
  }
}

TEST_F(StageExchangeTest, AFailedAttemptIsRunAgainOverNewCommunicators) {
  const ClusterRun over = OverTransports();
  worker::FailCollective(13, ncclRemoteError);
  const ClusterRun again = OnGpus(2, 1);
  EXPECT_EQ(again.checksums, over.checksums);
  ExpectByNccl(again);
  EXPECT_GT(CountNccl().aborted, 0);
}

// As the other stage notices one that dies.
TEST_F(StageExchangeTest, SoIsOneWhoseStagesLoseEachOther) {
  job_.train.steps = 4;  // of which each takes fewer operations than a connection has
  const ClusterRun over = OverTransports();
  job_.service.transports = {"tcp"};
  gpu::SetFakeGpus({.count = 2, .seed = 3});
  const auto open = [](int worker) {
    return worker::OpenDevice({.kind = plan::DeviceKind::kCuda, .gpu = worker});
  };
  const ClusterRun again = TrainToEnd(
      job_, tokens_,
      {.workers = 2, .faults = {.seed = 7, .break_after_operations = 40}, .open_device = open});
  EXPECT_EQ(again.checksums, over.checksums);
  ExpectByNccl(again);
  EXPECT_GT(CountNccl().aborted, 0);
}

// The other stage waits for it, with no job yet that could be cancelled.
TEST_F(StageExchangeTest, AStageThatDoesNotComeEndsTheJobSoon) {
  gpu::SetFakeGpus({.count = 2});
  const auto open = [](int worker) -> absl::StatusOr<worker::OpenedDevice> {
    if (worker == 1) {
      return absl::UnavailableError("its GPU is gone");
    }
    return worker::OpenDevice({.kind = plan::DeviceKind::kCuda, .gpu = worker});
  };
  job_.cluster.recovery_timeout_seconds = 1;  // no other will
  const absl::Time begun = absl::Now();
  const auto run = Train(job_, tokens_, {.workers = 2, .open_device = open});
  EXPECT_LT(absl::Now() - begun, absl::Seconds(60));
  EXPECT_THAT(run.status().ToString(), HasSubstr("its GPU is gone"));
}

// On one GPU, and on one each where NCCL is not there.
TEST_F(StageExchangeTest, StagesThatOpenEachOthersMemoryCopyWithinIt) {
  const ClusterRun over = OverTransports();
  job_.service.transports = {"shm", "tcp"};
  uint64_t seed = 2;
  for (const bool shared : {true, false}) {
    for (const auto& [schedule, chunks] :
         {std::pair("1F1B", 1), std::pair("interleaved", 2), std::pair("ZB-V", 2)}) {
      SCOPED_TRACE(fmt::format("{} {}", schedule, shared ? "on one GPU" : "on two"));
      SetPipeline(schedule, chunks, shared ? plan::OffloadedChunks::kFull : 0.0);
      SetFakeNccl({.there = shared});
      const auto reach = shared ? Reach({0}) : Reach({0, 1});
      const ClusterRun run = OnGpus(2, seed++, reach, shared);
      EXPECT_EQ(run.checksums, over.checksums);
      EXPECT_EQ(CountNccl().messages, 0);
      ExpectBytesBy("cuda_ipc", run);
      ExpectFallbacks(run, 0);
      EXPECT_THAT(run.worker_metrics, HasSubstr("shoal_client_fallbacks_total 0"));
      ExpectAllClosed(*reach);
    }
  }
}

TEST_F(StageExchangeTest, AttemptsThatFailBetweenThemAreRunAgain) {
  job_.train.steps = 4;  // of which each takes fewer operations than a connection has
  const ClusterRun over = OverTransports();
  job_.service.transports = {"shm", "tcp"};
  const auto reach = Reach({0});
  gpu::SetFakeGpus({.count = 1, .seed = 3});
  const auto open = [&](int) {
    auto compute_device = worker::OpenDevice({.kind = plan::DeviceKind::kCuda, .gpu = 0});
    if (compute_device.ok()) {
      compute_device->reach = reach;
    }
    return compute_device;
  };
  const ClusterRun again = TrainToEnd(
      job_, tokens_,
      {.workers = 2, .faults = {.seed = 7, .break_after_operations = 40}, .open_device = open});
  EXPECT_EQ(again.checksums, over.checksums);
  EXPECT_THAT(again.worker_metrics, ContainsRegex("shoal_worker_failed_steps_total [1-9]"));
  ExpectFallbacks(again, 0);
  ExpectAllClosed(*reach);
}

TEST_F(StageExchangeTest, ThroughTheHostWhereMemoryCannotBeOpened) {
  const ClusterRun over = OverTransports();
  job_.service.transports = {"shm", "tcp"};
  for (const int64_t refused : {1, 2}) {  // by the accepting side and by the connecting one
    const auto reach = Reach({0});
    before_run_ = [refused] {
      gpu::FailCall("cudaIpcOpenMemHandle", refused, cudaErrorPeerAccessUnsupported);
    };
    const ClusterRun run = OnGpus(2, 2, reach, /*shared=*/true);
    EXPECT_EQ(run.checksums, over.checksums);
    EXPECT_THAT(run.worker_metrics, HasSubstr("shoal_client_fallbacks_total 0"))
        << "shm all the same";
    ExpectFallbacks(run, 1);
    ExpectBytesBy("shm", run);
    ExpectAllClosed(*reach);
  }
}

TEST_F(StageExchangeTest, StagesThatShareAGpuThatNothingReachesGoOverTransports) {
  const ClusterRun over = OverTransports();
  const ClusterRun shared = OnGpus(2, 1, nullptr, /*shared=*/true);
  EXPECT_EQ(shared.checksums, over.checksums);
  EXPECT_EQ(CountNccl().messages, 0);
  ExpectFallbacks(shared, 1);
}

}  // namespace
}  // namespace shoal::testing

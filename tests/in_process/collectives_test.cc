// Workers on fake GPUs that exchange weights and gradients among themselves, by the fake
// NCCL: they train what workers train that meet at layers over the servers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/in_process/gpu_training.h"
#include "worker/collectives/nccl/fake_nccl/fake_nccl.h"

namespace shoal::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using worker::CountNccl;
using worker::SetFakeNccl;

class CollectivesTest : public GpuTraining {
 protected:
  CollectivesTest() {
    SetFakeNccl({});
    job_.train.synchronization = plan::Synchronization::kLayer;
  }
  // That all went by collectives, and nothing by barriers over the servers.
  static void ExpectExchanged(const ClusterRun& run) {
    EXPECT_THAT(run.worker_metrics, HasSubstr("shoal_client_barriers_total 0"));
    EXPECT_THAT(run.worker_metrics, HasSubstr("shoal_worker_exchange_fallbacks_total 0"));
    EXPECT_THAT(run.worker_metrics,
                ContainsRegex("shoal_worker_collectives_total.operation=.all_gather.. [1-9]"));
    EXPECT_THAT(run.worker_metrics,
                ContainsRegex("shoal_worker_collective_bytes_total.operation=.reduce_scatter.. "
                              "[1-9]"));
    EXPECT_GT(CountNccl().all_gathers, 0);
    EXPECT_GT(CountNccl().reduce_scatters, 0);
    EXPECT_EQ(CountNccl().communicators, 0) << "left behind";
  }
};

TEST_F(CollectivesTest, TrainWhatBarriersOverTheServersTrain) {
  const ClusterRun cpu = TrainToEnd(job_, tokens_, {.workers = 3});
  const ClusterRun exchanged = OnGpus(3, 1);
  ExpectNear(exchanged, cpu, 1e-4);
  ExpectExchanged(exchanged);
  EXPECT_EQ(CountNccl().aborted, 0);
  // In every order of streams the same bits.
  EXPECT_EQ(OnGpus(3, 2).checksums, exchanged.checksums);
}

TEST_F(CollectivesTest, WhateverIsKeptAndPushed) {
  const ClusterRun cpu = TrainToEnd(job_, tokens_, {.workers = 2});
  for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
    for (const plan::PushPolicy push : {plan::PushPolicy::kMicrobatch, plan::PushPolicy::kStep}) {
      job_.train.residency = residency;
      job_.train.push = push;
      SetFakeNccl({});
      const ClusterRun exchanged = OnGpus(2, 3);
      ExpectNear(exchanged, cpu, 1e-4);
      ExpectExchanged(exchanged);
    }
  }
}

TEST_F(CollectivesTest, InBf16WithWeightsStraightFromTheServers) {
  job_.train.compute = plan::ComputeType::kBf16;
  job_.service.wire_type = DType::kBF16;
  job_.service.transports = {"shm", "tcp"};  // of which one does not reach the GPUs
  const ClusterRun cpu = OnTheCpu();
  job_.train.device = plan::DeviceKind::kCuda;
  const auto reach = std::make_shared<transport::FakeGpuMemory>();
  const ClusterRun exchanged = OnGpus(2, 3, reach);
  ExpectNear(exchanged, cpu, 1e-2);
  ExpectExchanged(exchanged);
  EXPECT_GT(reach->copies, 0);
}

TEST_F(CollectivesTest, AFailedAttemptIsRunAgainOverANewCommunicator) {
  const ClusterRun whole = OnGpus(2, 1);
  SetFakeNccl({});
  worker::FailCollective(9, ncclRemoteError);
  const ClusterRun again = OnGpus(2, 1);
  EXPECT_EQ(again.checksums, whole.checksums);
  EXPECT_GT(CountNccl().aborted, 0);
  EXPECT_EQ(CountNccl().communicators, 0) << "left behind";
}

// In the middle of a step, and its peers wait for it in a collective.
TEST_F(CollectivesTest, WhereAWorkerIsLostTheOthersGoOnOverANewCommunicator) {
  job_.train.steps = 6;
  const ClusterRun cpu = OnTheCpu();
  for (const int lost : {1, 2}) {
    SetFakeNccl({});
    const ClusterRun run = OnGpus(3, 1, nullptr, /*shared=*/false, lost);
    ExpectNear(run, cpu, 1e-4);
    ExpectExchanged(run);
    EXPECT_GT(CountNccl().aborted, 0);
  }
}

// Forward alone gathers what training gathers, and sums nothing.
TEST_F(CollectivesTest, ValidateByCollectivesToo) {
  const std::string held_out = folder_ / "held_out";
  ASSERT_TRUE(WriteSyntheticTokens(held_out, plan::NamedShape("tiny")->vocabulary, 7, 40, 9).ok());
  job_.data.validation = {.path = held_out, .every_steps = 1, .at_start = true};
  validation_file_ = held_out;
  const ClusterRun cpu = OnTheCpu();
  const ClusterRun exchanged = OnGpus(3, 1);
  ExpectNear(exchanged, cpu, 1e-4);
  ExpectExchanged(exchanged);
  ASSERT_GT(cpu.validations.size(), 2U);
  ASSERT_EQ(exchanged.validations.size(), cpu.validations.size());
  for (size_t i = 0; i < cpu.validations.size(); ++i) {
    EXPECT_NEAR(exchanged.validations[i].loss(), cpu.validations[i].loss(), 1e-4);
  }
}

TEST_F(CollectivesTest, WorkersThatShareAGpuMeetOverTheServers) {
  const ClusterRun shared = OnGpus(2, 1, nullptr, /*shared=*/true);
  ExpectNear(shared, OnTheCpu(), 1e-4);
  EXPECT_EQ(CountNccl().all_gathers, 0);
  EXPECT_THAT(shared.worker_metrics, HasSubstr("shoal_worker_exchange_fallbacks_total 1"));
  EXPECT_THAT(shared.worker_metrics, Not(HasSubstr("shoal_client_barriers_total 0")));
}

TEST_F(CollectivesTest, SoDoThoseWithoutNcclAndThoseThatSumExactly) {
  SetFakeNccl({.there = false});
  const ClusterRun without = OnGpus(2, 1);
  ExpectNear(without, OnTheCpu(), 1e-4);
  EXPECT_THAT(without.worker_metrics, HasSubstr("shoal_worker_exchange_fallbacks_total 1"));
  SetFakeNccl({});
  job_.service.accumulate = plan::Accumulate::kExact;
  ExpectNear(OnGpus(2, 1), OnTheCpu(), 1e-4);
  EXPECT_EQ(CountNccl().all_gathers, 0);
}

}  // namespace
}  // namespace shoal::testing

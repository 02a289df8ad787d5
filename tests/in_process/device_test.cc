// Workers whose device computes late, in an order of its own, in memory that nobody else reaches:
// they train to the bits of workers on the CPU, whatever is kept, summed, met for and drawn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "core/base/status.h"
#include "tests/in_process/tiny_job.h"
#include "worker/job/job_context.h"
#include "worker/ops/testing/late_device.h"

namespace shoal::testing {
namespace {

class DeviceTest : public TinyJobTest {
 protected:
  DeviceTest() {
    plan::ModelSpec spec = *plan::NamedShape("tiny");
    spec.layers = 4;
    MakeModel(spec);
    job_.train.steps = 3;
    job_.train.minibatch_samples = 10;
  }

  // `devices`: of the workers, the first ones have such a device.
  ClusterRun Run(int workers, int devices, const transport::FaultOptions& faults = {.seed = 0}) {
    return TinyJobTest::Run({.servers = 2,
                             .workers = workers,
                             .faults = faults,
                             .open_device = [this, devices](int worker) {
                               const uint64_t seed = ++seed_ * 10 + static_cast<uint64_t>(worker);
                               return worker::OpenedDevice{
                                   .compute_device = worker < devices
                                                         ? worker::MakeLateComputeDevice(seed)
                                                         : worker::MakeCpuComputeDevice(1)};
                             }});
  }

  std::atomic<uint64_t> seed_ = 0;
};

// One worker adds its gradients up in one order, so that float sums have one result too.
TEST_F(DeviceTest, WhateverIsKeptAndSummed) {
  for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
    for (const plan::PushPolicy push : {plan::PushPolicy::kMicrobatch, plan::PushPolicy::kStep}) {
      for (const plan::Synchronization synchronization :
           {plan::Synchronization::kStep, plan::Synchronization::kLayer}) {
        job_.train.residency = residency;
        job_.train.push = push;
        job_.train.synchronization = synchronization;
        ExpectSameBits(Run(1, 1), Run(1, 0));
      }
    }
  }
}

TEST_F(DeviceTest, BesideOthersInExactMode) {
  job_.service.accumulate = plan::Accumulate::kExact;
  job_.service.transports = {"tcp"};
  for (const plan::Assignment assignment :
       {plan::Assignment::kLbMini, plan::Assignment::kDynamic}) {
    job_.plan.assignment = assignment;
    const ClusterRun cpu = Run(3, 0);
    ExpectSameBits(Run(3, 2), cpu);
    ExpectSameBits(Run(3, 3,
                       {.seed = 7,
                        .delay_probability = 0.5,
                        .max_delay = absl::Milliseconds(2),
                        .reorder = true,
                        .break_after_operations = 150}),
                   cpu);
  }
}

TEST_F(DeviceTest, InBf16) {
  job_.train.compute = plan::ComputeType::kBf16;
  job_.service.wire_type = DType::kBF16;
  ExpectSameBits(Run(1, 1), Run(1, 0));
  job_.service.wire_type = DType::kF32;  // the client converts
  ExpectSameBits(Run(1, 1), Run(1, 0));
}

TEST_F(DeviceTest, WithBlocksInNf4) {
  job_.lora = {.rank = 4, .quantize = plan::Quantize::kNf4};
  for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
    job_.train.residency = residency;
    ExpectSameBits(Run(1, 1), Run(1, 0));
  }
}

TEST_F(DeviceTest, WithTheModelFromFiles) {
  job_.lora = {.rank = 4};
  for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
    job_.train.residency = residency;
    job_.service.frozen = plan::Frozen::kServers;
    const ClusterRun served = Run(1, 0);
    job_.service.frozen = plan::Frozen::kFiles;
    const ClusterRun run = Run(1, 1);
    ASSERT_EQ(run.steps.size(), served.steps.size());
    EXPECT_EQ(run.steps.back().loss(), served.steps.back().loss());
    EXPECT_EQ(run.weights, served.weights);
  }
}

TEST_F(DeviceTest, AsStagesOfAPipeline) {
  job_.service.accumulate = plan::Accumulate::kExact;
  const ClusterRun single = Run(1, 0);
  job_.cluster.pipeline = {.stages = 2,
                           .chunks = 2,
                           .schedule = "interleaved",
                           .offload = {plan::OffloadedChunks::kHalf}};
  job_.cluster.pipeline.pace = {.forward_flops = 2e10,
                                .backward_input_flops = 2e10,
                                .backward_weights_flops = 2e10,
                                .offload_bytes_per_second = 2e9,
                                .reload_bytes_per_second = 2e9};
  for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
    job_.train.residency = residency;
    ExpectSameBits(Run(2, 2), single);
  }
}

TEST_F(DeviceTest, DropoutOfAdaptersIsRefused) {
  job_.lora = {.rank = 4, .dropout = 0.1};
  proto::JoinJobReply join;
  *join.mutable_job() = plan::ToMessage(job_);
  join.set_token_file(tokens_);
  join.set_workers(1);
  join.add_servers()->set_index(0);
  const auto joined = [&](bool late) {
    const worker::WorkerJobOptions options = {.open_device = [late](const auto&) {
      return worker::OpenedDevice{.compute_device = late ? worker::MakeLateComputeDevice(1)
                                                         : worker::MakeCpuComputeDevice(1)};
    }};
    worker::OpenedDevice opened;
    return worker::MakeJobContext(join, options, nullptr, nullptr, nullptr, &opened).status();
  };
  EXPECT_TRUE(joined(false).ok());
  EXPECT_EQ(std::string(Message(joined(true))),
            "lora.dropout is not for GPUs yet: leave it out, or compute on CPUs");
}

}  // namespace
}  // namespace shoal::testing

// Workers whose device computes late, in an order of its own, in memory that nobody else reaches:
// they train to the bits of workers on the CPU, whatever is kept, summed, met for and drawn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "fmt/format.h"
#include "formats/hf_model.h"
#include "tests/in_process/cluster.h"
#include "tests/in_process/reference.h"
#include "worker/ops/testing/late_device.h"

namespace shoal::testing {
namespace {

class DeviceTest : public ::testing::Test {
 protected:
  DeviceTest() {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    plan::ModelSpec spec = *plan::NamedShape("tiny");
    spec.layers = 4;
    job_.model = folder_ / "model";
    EXPECT_TRUE(formats::InitHfModel(job_.model, spec, /*seed=*/3, {}).ok());
    tokens_ = folder_ / "tokens";
    EXPECT_TRUE(WriteSyntheticTokens(tokens_, spec.vocabulary, 40, 120, /*seed=*/5).ok());
    job_.data.train = tokens_;
    job_.data.max_sequence_tokens = 128;
    job_.data.microbatch_tokens = 128;
    job_.train.steps = 3;
    job_.train.minibatch_samples = 10;
    job_.train.learning_rate = 1e-2;
    job_.train.epsilon = 1e-4;
    job_.train.compute = plan::ComputeType::kFp32;
    job_.service.wire_type_auto = false;
    job_.service.partition_bytes = 16 << 10;
    job_.checkpoint.directory = folder_ / "checkpoints";
    job_.checkpoint.export_huggingface = false;
  }
  ~DeviceTest() override { std::filesystem::remove_all(folder_); }

  // `devices`: of the workers, the first ones have such a device.
  ClusterRun Run(int workers, int devices, const transport::FaultOptions& faults = {.seed = 0}) {
    return TrainToEnd(job_, tokens_,
                      {.servers = 2,
                       .workers = workers,
                       .faults = faults,
                       .open_machine = [this, workers, devices](int worker) {
                         const uint64_t seed = ++seed_ * 10 + static_cast<uint64_t>(worker);
                         return worker::OpenedMachine{.machine = worker < devices
                                                                     ? worker::MakeLateMachine(seed)
                                                                     : worker::MakeCpuMachine(1),
                                                      .gpus = workers};
                       }});
  }
  static void ExpectSameBits(const ClusterRun& run, const ClusterRun& cpu) {
    ASSERT_FALSE(cpu.checksums.empty());
    EXPECT_EQ(run.checksums, cpu.checksums);
    ASSERT_EQ(run.steps.size(), cpu.steps.size());
    for (size_t i = 0; i < run.steps.size(); ++i) {
      EXPECT_EQ(run.steps[i].loss(), cpu.steps[i].loss()) << "step " << i + 1;
      EXPECT_EQ(run.steps[i].target_tokens(), cpu.steps[i].target_tokens());
    }
  }

  std::filesystem::path folder_;
  std::string tokens_;
  plan::Job job_;
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

}  // namespace
}  // namespace shoal::testing

// Workers on fake GPUs beside workers on the CPU, training the same small model.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/model/huggingface/hf_model.h"
#include "core/transport/cuda/testing/fake_gpu_memory.h"
#include "tests/in_process/cluster.h"
#include "tests/in_process/reference.h"

namespace shoal::testing {

class GpuTraining : public ::testing::Test {
 protected:
  GpuTraining() {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    const plan::ModelSpec spec = *plan::NamedShape("tiny");
    job_.model = folder_ / "model";
    EXPECT_TRUE(formats::InitHfModel(job_.model, spec, /*seed=*/3, {}).ok());
    tokens_ = folder_ / "tokens";
    EXPECT_TRUE(WriteSyntheticTokens(tokens_, spec.vocabulary, 12, 60, /*seed=*/5).ok());
    job_.data.train = tokens_;
    job_.data.max_sequence_tokens = 64;
    job_.data.microbatch_tokens = 64;
    job_.train.steps = 2;
    job_.train.minibatch_samples = 4;
    job_.train.learning_rate = 1e-2;
    job_.train.epsilon = 1e-4;
    job_.train.compute = plan::ComputeType::kFp32;
    job_.service.wire_type_auto = false;
    job_.service.partition_bytes = 16 << 10;
    job_.checkpoint.directory = folder_ / "checkpoints";
    job_.checkpoint.export_huggingface = false;
  }
  ~GpuTraining() override { std::filesystem::remove_all(folder_); }

  ClusterRun OnTheCpu() { return TrainToEnd(job_, tokens_, {.validation_file = validation_file_}); }
  // A GPU for each worker, or one for all.
  ClusterRun OnGpus(int workers, uint64_t seed,
                    const std::shared_ptr<transport::FakeGpuMemory>& reach = nullptr,
                    bool shared = false, int lost_worker = -1) {
    gpu::SetFakeGpus({.count = workers, .seed = seed});
    if (before_run_) {
      before_run_();
    }
    const auto open = [reach, shared](int worker) {
      absl::StatusOr<worker::OpenedDevice> compute_device =
          worker::OpenDevice({.kind = plan::DeviceKind::kCuda, .gpu = shared ? 0 : worker});
      if (compute_device.ok()) {
        compute_device->reach = reach;
      }
      return compute_device;
    };
    const auto open_server = [reach = server_reach_](int server, bool) {
      auto opened = server::MakeGpuOpener(-1)(server, /*reached=*/false);
      if (opened.ok()) {
        opened->reach = reach;
      }
      return opened;
    };
    return TrainToEnd(job_, tokens_,
                      {.workers = workers,
                       .validation_file = validation_file_,
                       .lost_worker = lost_worker,
                       .open_device = open,
                       .open_gpu = open_server});
  }
  // To those GPUs, of two at most.
  static std::shared_ptr<transport::FakeGpuMemory> Reach(std::vector<int> gpus) {
    gpu::SetFakeGpus({.count = 2});
    return std::make_shared<transport::FakeGpuMemory>(false, std::move(gpus));
  }
  static void ExpectNear(const ClusterRun& run, const ClusterRun& cpu, double tolerance) {
    ASSERT_EQ(run.steps.size(), cpu.steps.size());
    for (size_t i = 0; i < run.steps.size(); ++i) {
      EXPECT_NEAR(run.steps[i].loss(), cpu.steps[i].loss(), tolerance * cpu.steps[i].loss());
      EXPECT_NEAR(run.steps[i].grad_norm(), cpu.steps[i].grad_norm(),
                  10 * tolerance * cpu.steps[i].grad_norm());
      EXPECT_EQ(run.steps[i].target_tokens(), cpu.steps[i].target_tokens());
    }
  }

  // By which clients reach the server's GPU, the first; null: they do not.
  std::shared_ptr<transport::FakeGpuMemory> server_reach_;
  std::function<void()> before_run_;
  std::filesystem::path folder_;
  std::string tokens_;
  std::string validation_file_;  // where the job has a validation
  plan::Job job_;
};

}  // namespace shoal::testing

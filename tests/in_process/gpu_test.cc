// Workers on emulated GPUs, with the kernels that GPUs run: they train what workers on the CPU
// train, to the rounding of another order of sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/status.h"
#include "formats/hf_model.h"
#include "gpu/emulation/emulated_gpu.h"
#include "tests/in_process/cluster.h"
#include "tests/in_process/reference.h"
#include "transport/cuda/testing/emulated_gpu_memory.h"

namespace shoal::testing {
namespace {

class GpuTest : public ::testing::Test {
 protected:
  GpuTest() {
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
  ~GpuTest() override { std::filesystem::remove_all(folder_); }

  ClusterRun OnTheCpu() { return TrainToEnd(job_, tokens_, {}); }
  // A GPU for each worker.
  ClusterRun OnGpus(int workers, uint64_t seed,
                    const std::shared_ptr<transport::EmulatedGpuMemory>& reach = nullptr) {
    gpu::SetEmulatedGpus({.count = workers, .seed = seed});
    const auto open = [reach](int worker) {
      absl::StatusOr<worker::OpenedMachine> machine =
          worker::OpenMachine({.kind = plan::DeviceKind::kCuda, .gpu = worker});
      if (machine.ok()) {
        machine->reach = reach;
      }
      return machine;
    };
    return TrainToEnd(
        job_, tokens_,
        {.workers = workers, .open_machine = open, .make_gpu_state = server::MakeGpuStates(-1)});
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

  std::filesystem::path folder_;
  std::string tokens_;
  plan::Job job_;
};

TEST_F(GpuTest, TrainsWhatTheCpuTrains) {
  const ClusterRun cpu = OnTheCpu();
  const ClusterRun gpu = OnGpus(1, 1);
  ExpectNear(gpu, cpu, 1e-4);
  // In every order of its streams the same bits.
  EXPECT_EQ(OnGpus(1, 2).checksums, gpu.checksums);
}

// Bytes that moved between transports and a GPU.
double Moved(const ClusterRun& run, std::string_view direction, std::string_view way) {
  const std::string name = fmt::format(
      "shoal_worker_device_bytes_total{{direction=\"{}\",way=\"{}\"}} ", direction, way);
  const size_t at = run.worker_metrics.find(name);
  return at == std::string::npos ? 0 : std::stod(run.worker_metrics.substr(at + name.size()));
}

TEST_F(GpuTest, StraightIntoItsMemoryAndOutOfIt) {
  job_.service.transports = {"shm", "tcp"};  // of which one does not reach it
  job_.train.device = plan::DeviceKind::kCuda;
  const ClusterRun copied = OnGpus(1, 1);
  EXPECT_GT(Moved(copied, "get", "pinned"), 0);
  EXPECT_GT(Moved(copied, "push", "pinned"), 0);
  EXPECT_EQ(Moved(copied, "get", "direct") + Moved(copied, "push", "direct"), 0);
  for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
    for (const plan::PushPolicy push : {plan::PushPolicy::kMicrobatch, plan::PushPolicy::kStep}) {
      job_.train.residency = residency;
      job_.train.push = push;
      const ClusterRun through = OnGpus(1, 1);
      const bool pins_read_only = push == plan::PushPolicy::kStep;
      const auto reach = std::make_shared<transport::EmulatedGpuMemory>(pins_read_only);
      const ClusterRun direct = OnGpus(1, 2, reach);
      EXPECT_EQ(direct.checksums, through.checksums);
      EXPECT_GT(reach->copies, 0);
      EXPECT_EQ(reach->pageable, 0) << "all of it at the bus's full rate";
      for (const std::string_view direction : {"get", "push"}) {
        EXPECT_EQ(Moved(direct, direction, "direct"), Moved(through, direction, "pinned"));
        EXPECT_EQ(Moved(direct, direction, "pinned"), 0);
      }
    }
  }
}

// Weights that nobody may write are not copied in the driver's slow way.
TEST_F(GpuTest, SealedWeightsComeThroughPinnedMemory) {
  job_.service.transports = {"shm", "tcp"};
  const ClusterRun copied = OnGpus(1, 1);
  for (const bool pins_read_only : {false, true}) {
    const auto reach = std::make_shared<transport::EmulatedGpuMemory>(pins_read_only);
    const ClusterRun run = OnGpus(1, 2, reach);
    EXPECT_EQ(run.checksums, copied.checksums);
    EXPECT_EQ(reach->pageable, 0);
    EXPECT_EQ(Moved(run, "get", "direct") > 0, pins_read_only);
    EXPECT_GT(Moved(run, "push", "direct"), 0) << "slots are for writing";
  }
}

TEST_F(GpuTest, ThroughTheHostWhereTransportsDoNotReachIt) {
  const ClusterRun copied = OnGpus(1, 1);
  job_.service.transports = {"tcp"};
  const auto reach = std::make_shared<transport::EmulatedGpuMemory>();
  EXPECT_EQ(OnGpus(1, 2, reach).checksums, copied.checksums);
  EXPECT_EQ(reach->copies, 0) << "tcp brings them to the host, from which the GPU copies";
  job_.service.transports = {"shm", "tcp"};
  job_.service.wire_type = DType::kBF16;
  job_.service.gradient_type = DType::kBF16;
  ExpectNear(OnGpus(1, 2, reach), OnTheCpu(), 1e-2);
  EXPECT_EQ(reach->copies, 0) << "the host converts them on the way";
  job_.service.gradient_type = DType::kF32;
  const ClusterRun half = OnGpus(1, 2, reach);
  EXPECT_GT(Moved(half, "get", "pinned"), 0);
  EXPECT_GT(Moved(half, "push", "direct"), 0);
}

// Servers that keep their partitions in GPUs train the bits of those on the host, in float mode
// with one worker, whose pushes come in one order, and in exact mode with any.
TEST_F(GpuTest, ServersInGpusTrainTheSameBits) {
  for (const plan::Accumulate accumulate : {plan::Accumulate::kFloat, plan::Accumulate::kExact}) {
    const int workers = accumulate == plan::Accumulate::kExact ? 2 : 1;
    job_.service.accumulate = accumulate;
    job_.train.push = accumulate == plan::Accumulate::kExact ? plan::PushPolicy::kMicrobatch
                                                             : plan::PushPolicy::kStep;
    job_.service.memory = plan::PartitionMemory::kHost;
    const ClusterRun host = TrainToEnd(job_, tokens_, {.servers = 2, .workers = workers});
    job_.service.memory = plan::PartitionMemory::kCuda;
    gpu::SetEmulatedGpus({.count = 2, .seed = 6});
    const ClusterRun gpu =
        TrainToEnd(job_, tokens_,
                   {.servers = 2, .workers = workers, .make_gpu_state = server::MakeGpuStates(-1)});
    EXPECT_EQ(gpu.checksums, host.checksums);
    EXPECT_EQ(gpu.weights, host.weights);
    EXPECT_GT(gpu::Counters().launches, 0);
  }
}

// Worker and server on one GPU.
TEST_F(GpuTest, SharedByWorkerAndServer) {
  const ClusterRun apart = OnGpus(1, 1);
  job_.service.memory = plan::PartitionMemory::kCuda;
  EXPECT_EQ(OnGpus(1, 4).checksums, apart.checksums);
}

TEST_F(GpuTest, InBf16BesideEachOther) {
  job_.train.compute = plan::ComputeType::kBf16;
  job_.service.wire_type = DType::kBF16;
  job_.train.residency = plan::Residency::kLayer;
  job_.train.push = plan::PushPolicy::kMicrobatch;
  ExpectNear(OnGpus(2, 3), OnTheCpu(), 1e-2);
}

}  // namespace
}  // namespace shoal::testing

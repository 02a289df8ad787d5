// Workers on fake GPUs, with the kernels that GPUs run: they train what workers on the CPU
// train, to the rounding of another order of sums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/plan/memory/memory_plan.h"
#include "tests/in_process/gpu_training.h"
#include "worker/backend/cuda/cuda_device.h"
#include "worker/ops/cuda/cuda_ops.h"

namespace shoal::testing {
namespace {

using GpuTest = GpuTraining;

TEST_F(GpuTest, TrainsWhatTheCpuTrains) {
  const ClusterRun cpu = OnTheCpu();
  const ClusterRun gpu = OnGpus(1, 1);
  ExpectNear(gpu, cpu, 1e-4);
  // In every order of its streams the same bits.
  EXPECT_EQ(OnGpus(1, 2).checksums, gpu.checksums);
}

TEST_F(GpuTest, TrainsAdaptersAsTheCpuDoes) {
  job_.lora = {.rank = 4, .alpha = 8, .targets = {"attention", "*.1.mlp.*"}};
  for (const plan::PushPolicy push : {plan::PushPolicy::kMicrobatch, plan::PushPolicy::kStep}) {
    job_.train.push = push;
    const ClusterRun gpu = OnGpus(1, 1);
    ExpectNear(gpu, OnTheCpu(), 1e-4);
    EXPECT_EQ(OnGpus(1, 2).checksums, gpu.checksums);
  }
}

// Bytes that moved between transports and a GPU.
double Moved(const ClusterRun& run, std::string_view direction, std::string_view reach) {
  const std::string name = fmt::format(
      "shoal_worker_device_bytes_total{{direction=\"{}\",path=\"{}\"}} ", direction, reach);
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
      const auto reach = std::make_shared<transport::FakeGpuMemory>(pins_read_only);
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
    const auto reach = std::make_shared<transport::FakeGpuMemory>(pins_read_only);
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
  const auto reach = std::make_shared<transport::FakeGpuMemory>();
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
    gpu::SetFakeGpus({.count = 2, .seed = 6});
    const ClusterRun gpu = TrainToEnd(
        job_, tokens_, {.servers = 2, .workers = workers, .open_gpu = server::MakeGpuOpener(-1)});
    EXPECT_EQ(gpu.checksums, host.checksums);
    EXPECT_EQ(gpu.weights, host.weights);
    EXPECT_GT(gpu::Counters().launches, 0);
  }
}

// Weights and gradients from GPU to GPU, with nothing on the host but headers: the same bits.
TEST_F(GpuTest, FromTheServersGpuAndIntoIt) {
  job_.service.transports = {"shm", "tcp"};  // of which one does not reach it
  job_.train.device = plan::DeviceKind::kCuda;
  for (const bool bf16 : {false, true}) {
    job_.train.compute = bf16 ? plan::ComputeType::kBf16 : plan::ComputeType::kFp32;
    job_.service.wire_type = bf16 ? DType::kBF16 : DType::kF32;
    for (const plan::Residency residency : {plan::Residency::kLayer, plan::Residency::kStep}) {
      job_.train.residency = residency;
      job_.train.push = residency == plan::Residency::kStep ? plan::PushPolicy::kStep
                                                            : plan::PushPolicy::kMicrobatch;
      job_.service.memory = plan::PartitionMemory::kHost;
      const ClusterRun direct = OnGpus(1, 1, Reach({0}));
      job_.service.memory = plan::PartitionMemory::kCuda;
      server_reach_ = Reach({0});
      const ClusterRun inside = OnGpus(1, 2, Reach({0}));
      EXPECT_EQ(inside.checksums, direct.checksums);
      EXPECT_EQ(inside.weights, direct.weights) << "read by one that does not reach the GPU";
      for (const std::string_view direction : {"get", "push"}) {
        EXPECT_GT(Moved(inside, direction, "gpu"), 0);
        EXPECT_EQ(Moved(inside, direction, "gpu"), Moved(direct, direction, "direct"));
        EXPECT_EQ(Moved(inside, direction, "direct") + Moved(inside, direction, "pinned"), 0);
      }
      EXPECT_EQ(server_reach_->copies, 0) << "clients copy";
      server_reach_ = nullptr;
    }
  }
}

// Of two workers, with a GPU each, one does not see the server's; then none can open its memory.
TEST_F(GpuTest, OverTheHostWhereTheServersGpuIsNotReached) {
  job_.service.transports = {"shm", "tcp"};
  job_.train.device = plan::DeviceKind::kCuda;
  job_.service.accumulate = plan::Accumulate::kExact;
  job_.service.memory = plan::PartitionMemory::kCuda;
  const ClusterRun apart = OnGpus(2, 1);
  server_reach_ = Reach({0});
  const ClusterRun none = OnGpus(2, 2, Reach({1}));
  EXPECT_EQ(none.checksums, apart.checksums);
  EXPECT_EQ(Moved(none, "get", "gpu") + Moved(none, "push", "gpu"), 0);
  EXPECT_GT(Moved(none, "get", "direct"), 0);
  before_run_ = [] { gpu::FailCall("cudaIpcOpenMemHandle", 1, cudaErrorPeerAccessUnsupported); };
  const ClusterRun refused = OnGpus(1, 2, Reach({0}));
  const std::vector<uint64_t> alone = refused.checksums;
  EXPECT_EQ(Moved(refused, "get", "gpu") + Moved(refused, "push", "gpu"), 0);
  EXPECT_GT(Moved(refused, "get", "direct"), 0) << "shm all the same";
  before_run_ = nullptr;
  EXPECT_EQ(OnGpus(1, 2, Reach({0})).checksums, alone);
}

// A worker on a server's GPU leaves room for slots that the server will take there, wherever the
// job's processes are.
TEST_F(GpuTest, AWorkerLeavesRoomForWhatServersTakeOfItsGpu) {
  job_.service.transports = {"shm", "tcp"};
  job_.train.device = plan::DeviceKind::kCuda;
  job_.train.residency = plan::Residency::kStep;
  job_.train.push = plan::PushPolicy::kStep;
  job_.service.memory = plan::PartitionMemory::kCuda;
  job_.cluster.recovery_timeout_seconds = 1;  // no other worker will come
  const plan::MemoryPlan plan = plan::PlanMemory(*plan::NamedShape("tiny"), job_, 1, 1, {}).value();
  const int64_t needed = plan.stages[0].gpu.total();
  const std::shared_ptr<transport::FakeGpuMemory> reach = Reach({0});
  const auto run = [&](bool local, int server_gpu, int64_t free) {
    std::filesystem::remove_all(job_.checkpoint.directory);
    gpu::SetFakeGpus({.count = 2});
    const auto open = [&](int) -> absl::StatusOr<worker::OpenedDevice> {
      SHOAL_ASSIGN_OR_RETURN(worker::OpenedDevice opened,
                             worker::OpenDevice({.kind = plan::DeviceKind::kCuda}));
      opened.compute_device.ops.reset();  // before its device
      SHOAL_ASSIGN_OR_RETURN(opened.compute_device.device,
                             worker::MakeCudaDevice({.budget_bytes = free}));
      SHOAL_ASSIGN_OR_RETURN(opened.compute_device.ops,
                             worker::MakeCudaOps(*opened.compute_device.device, {}));
      opened.reach = reach;
      return opened;
    };
    const auto open_server = [&](int server, bool) {
      auto opened = server::MakeGpuOpener(server_gpu)(server, /*reached=*/false);
      if (opened.ok() && server_gpu == 0) {
        opened->reach = reach;
      }
      return opened;
    };
    return Train(job_, tokens_, {.local = local, .open_device = open, .open_gpu = open_server});
  };
  constexpr int64_t kSlots = int64_t{2} << 20;  // a driver's page
  for (const bool local : {true, false}) {
    EXPECT_TRUE(run(local, 0, needed + kSlots)->end.has_done());
    const auto tight = run(local, 0, needed + kSlots - 1);
    EXPECT_THAT(tight.status().ToString(), ::testing::HasSubstr("a worker needs"));
    EXPECT_TRUE(run(local, 1, needed)->end.has_done()) << "on another GPU";
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

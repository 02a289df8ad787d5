// Servers that keep their partitions in emulated GPUs. The tests of this program that are not here
// are those of servers that keep them on the host.
#include "server/service/gpu_memory.h"

#include <cuda_runtime_api.h>

#include <filesystem>

#include "common/random.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "gpu/emulation/emulated_gpu.h"
#include "gtest/gtest.h"
#include "server/service/testing_cluster.h"

namespace shoal::server {
namespace {

using testing::HasSubstr;

class InGpus : public testing::Environment {
 public:
  void SetUp() override {
    gpu::SetEmulatedGpus({.count = 2});
    TestingCluster::gpu_states = MakeGpuStates(-1);
  }
};
const testing::Environment* const kInGpus = testing::AddGlobalTestEnvironment(new InGpus);

class GpuMemoryTest : public testing::Test {
 protected:
  GpuMemoryTest() : folder_(testing::TempDir() + "gpu-memory-" + SecureToken()) {}
  ~GpuMemoryTest() override {
    TestingCluster::gpu_states = MakeGpuStates(-1);
    std::filesystem::remove_all(folder_);
  }
  static std::string Text(const absl::Status& status) { return std::string(status.message()); }
  const std::string folder_;
};

TEST_F(GpuMemoryTest, TrainsWhatTheHostTrainsAndPinsWhatItCopies) {
  std::vector<uint64_t> checksums[2];
  for (const bool on_gpu : {false, true}) {
    gpu::SetEmulatedGpus({.count = 2, .seed = 4});
    TestingCluster::gpu_states = on_gpu ? MakeGpuStates(-1) : nullptr;
    TestingCluster cluster(folder_, 2, plan::Accumulate::kFloat);
    ASSERT_TRUE(cluster.Configure().ok());
    // The weights of both servers, and what they stage by.
    const int64_t before_clients = gpu::Counters().host_allocations;
    for (int64_t step = 1; step <= 3; ++step) {
      ASSERT_TRUE(cluster.BeginAttempt(step, 1).ok());
      for (int server = 0; server < cluster.servers(); ++server) {
        TestingClient client(&cluster.service(server), &cluster.client_transport(), 1, 1);
        ASSERT_TRUE(client.Connect().ok());
        for (const int partition : plan::PartitionsOf(cluster.shard_map(), server)) {
          for (int64_t sequence = 1; sequence <= 2; ++sequence) {
            const auto answer =
                client.SendAndWait({.partition = partition,
                                    .step = step,
                                    .sequence = sequence,
                                    .gradient = cluster.Gradient(1, step, sequence, partition)});
            ASSERT_TRUE(answer.has_value() && answer->code == absl::StatusCode::kOk);
          }
        }
      }
      ASSERT_TRUE(cluster.Prepare(step, 1).ok());
      ASSERT_TRUE(cluster.Commit(step, 1).ok());
    }
    checksums[on_gpu] = cluster.Checksums();
    EXPECT_EQ(gpu::Counters().host_allocations - before_clients, on_gpu ? 6 : 0)
        << "slots of each connection";
    EXPECT_EQ(gpu::Counters().copies_to_host > 0, on_gpu);
  }
  EXPECT_EQ(checksums[0], checksums[1]);
  EXPECT_EQ(gpu::Counters().host_allocations, gpu::Counters().host_frees);
}

TEST_F(GpuMemoryTest, SaysWhyThereIsNone) {
  TestingCluster::gpu_states = MakeGpuStates(7);
  EXPECT_EQ(Text(TestingCluster(folder_, 1, plan::Accumulate::kFloat).Configure()),
            "service.memory cuda: cuda:7: there is no such GPU, this process sees 2; see "
            "CUDA_VISIBLE_DEVICES");
  gpu::SetEmulatedGpus({.driver = false});
  TestingCluster::gpu_states = MakeGpuStates(-1);
  EXPECT_THAT(Text(TestingCluster(folder_, 1, plan::Accumulate::kFloat).Configure()),
              testing::StartsWith("service.memory cuda: no NVIDIA driver: "));
  gpu::SetEmulatedGpus({.capability = 70});
  EXPECT_THAT(Text(TestingCluster(folder_, 1, plan::Accumulate::kFloat).Configure()),
              HasSubstr("compute capability 7.0, but 8.0 is needed"));
  gpu::SetEmulatedGpus({.count = 2});
}

TEST_F(GpuMemoryTest, AGpuThatFailsEndsTheStepAndTheServer) {
  gpu::SetEmulatedGpus({});
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_TRUE(cluster.Configure().ok());
  ASSERT_TRUE(cluster.BeginAttempt(1, 1).ok());
  // Sealing fails: this attempt cannot be prepared any more, the next one can.
  gpu::FailCall("cudaMemsetAsync", 1, cudaErrorInvalidValue);
  EXPECT_THAT(Text(cluster.Prepare(1, 1).status()),
              testing::StartsWith("step 1: adding gradients: cuda:0: clearing a sum"));
  EXPECT_THAT(Text(cluster.Prepare(1, 1).status()),
              HasSubstr("step 1 attempt 1 failed when it was sealed"));
  ASSERT_TRUE(cluster.BeginAttempt(1, 2).ok());
  ASSERT_TRUE(cluster.Prepare(1, 2).ok());
  // A commit that fails half way leaves nothing to go on from, nor to write.
  gpu::FailCall("cudaMemcpyAsync", 2, cudaErrorInvalidValue);
  EXPECT_THAT(Text(cluster.Commit(1, 2)),
              testing::StartsWith("step 1: updating weights: cuda:0: copying new weights: "));
  EXPECT_THAT(Text(cluster.BeginAttempt(1, 3)), HasSubstr("cuda:0: copying new weights: "));
  proto::WriteCheckpointRequest checkpoint;
  checkpoint.set_version(0);
  checkpoint.set_directory(folder_);
  EXPECT_THAT(Text(cluster.service(0).WriteCheckpoint(checkpoint).status()),
              HasSubstr("cuda:0: copying new weights: "));
  EXPECT_FALSE(cluster.service(0).GetChecksums({}).ok());
}

}  // namespace
}  // namespace shoal::server

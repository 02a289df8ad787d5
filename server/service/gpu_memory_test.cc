// Servers with partitions in fake GPUs. The other tests of this program keep them on the host.
#include "server/service/gpu_memory.h"

#include <cuda_runtime_api.h>

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/plan/memory/server_memory.h"
#include "core/transport/cuda/testing/fake_gpu_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/service/testing/cluster.h"

namespace shoal::server {
namespace {

using testing::HasSubstr;

class InGpus : public testing::Environment {
 public:
  void SetUp() override {
    gpu::SetFakeGpus({.count = 2});
    TestingCluster::gpus = MakeGpuOpener(-1);
  }
};
const testing::Environment* const kInGpus = testing::AddGlobalTestEnvironment(new InGpus);

class GpuMemoryTest : public testing::Test {
 protected:
  GpuMemoryTest() : folder_(testing::TempDir() + "gpu-memory-" + SecureToken()) {}
  ~GpuMemoryTest() override {
    TestingCluster::gpus = MakeGpuOpener(-1);
    std::filesystem::remove_all(folder_);
  }
  static std::string Text(const absl::Status& status) { return std::string(status.message()); }
  const std::string folder_;
};

TEST_F(GpuMemoryTest, TrainsWhatTheHostTrainsAndPinsWhatItCopies) {
  std::vector<uint64_t> checksums[2];
  for (const bool on_gpu : {false, true}) {
    gpu::SetFakeGpus({.count = 2, .seed = 4});
    TestingCluster::gpus = on_gpu ? MakeGpuOpener(-1) : nullptr;
    TestingCluster cluster(folder_, 2, plan::Accumulate::kFloat);
    ASSERT_TRUE(cluster.Configure().ok());
    // Both servers' weights and staging memory.
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

// Clients that reach the server's GPU, and one that does not.
class InGpuClientsTest : public GpuMemoryTest {
 protected:
  InGpuClientsTest() {
    gpu::SetFakeGpus({.count = 2, .seed = 7});
    server_reach_ = std::make_shared<transport::FakeGpuMemory>(false, std::vector<int>{0, 1});
    client_reach_ = std::make_shared<transport::FakeGpuMemory>(false, std::vector<int>{0});
    TestingCluster::gpus = [reach = server_reach_](int server, bool reached) {
      auto opened = MakeGpuOpener(server % 2)(server, /*reached=*/false);
      if (opened.ok() && reached) {
        opened->reach = reach;
        opened->index = server % 2;
      }
      return opened;
    };
  }
  // Sends all of `worker`'s pushes of a step over this client.
  static void PushAll(TestingCluster& cluster, int server, TestingClient& client, uint64_t worker,
                      int64_t step) {
    for (const int partition : plan::PartitionsOf(cluster.shard_map(), server)) {
      for (int64_t sequence = 1; sequence <= 2; ++sequence) {
        const auto answer =
            client.SendAndWait({.partition = partition,
                                .step = step,
                                .sequence = sequence,
                                .gradient = cluster.Gradient(worker, step, sequence, partition)});
        ASSERT_TRUE(answer.has_value() && answer->code == absl::StatusCode::kOk);
      }
    }
  }
  static bool ReadsWeightsInGpu(const proto::ConnectReply& granted) {
    return granted.extents(0).weights_region() != granted.extents(0).headers_region();
  }
  static int64_t BytesOf(const TestingCluster& cluster, int partition) {
    return 4 * cluster.partitions()[static_cast<size_t>(partition)].count;
  }
  std::shared_ptr<transport::FakeGpuMemory> server_reach_;
  std::shared_ptr<transport::FakeGpuMemory> client_reach_;
};

TEST_F(InGpuClientsTest, ReadAndPushThereWhatOthersDoOnTheHost) {
  std::vector<uint64_t> checksums[2];
  for (const bool in_gpu : {false, true}) {
    TestingCluster cluster(folder_, 1, plan::Accumulate::kExact, 1 << 14,
                           {.client_gpus = client_reach_});
    ASSERT_TRUE(cluster.Configure().ok());
    TestingClient gpu(&cluster.service(0), &cluster.client_transport(), 1, 1);
    TestingClient cpu(&cluster.service(0), &cluster.client_transport(), 2, 1);
    ASSERT_TRUE(gpu.Connect(/*read_only=*/false, in_gpu).ok());
    EXPECT_EQ(gpu.granted().gpu().empty(), !in_gpu);
    EXPECT_EQ(ReadsWeightsInGpu(gpu.granted()), in_gpu);
    EXPECT_EQ(gpu.granted().payloads_region() != gpu.granted().slots_region(), in_gpu);
    for (int64_t step = 1; step <= 3; ++step) {
      if (step == 2) {
        ASSERT_TRUE(cpu.Connect().ok());
        EXPECT_TRUE(cpu.granted().gpu().empty());
      }
      ASSERT_TRUE(cluster.BeginAttempt(step, 1).ok());
      PushAll(cluster, 0, gpu, 1, step);
      if (step >= 2) {
        PushAll(cluster, 0, cpu, 2, step);
      }
      ASSERT_TRUE(cluster.Prepare(step, 1).ok());
      const int64_t to_host = gpu::Counters().bytes_to_host;
      ASSERT_TRUE(cluster.Commit(step, 1).ok());
      EXPECT_EQ(gpu::Counters().bytes_to_host == to_host, in_gpu && step == 1)
          << "the host has weights while somebody reads them there";
      for (const int64_t version : {step, step - 1}) {
        for (const plan::PartitionSpec& partition : cluster.partitions()) {
          const auto there = gpu.Read(partition.id, version, BytesOf(cluster, partition.id));
          ASSERT_TRUE(there.ok()) << there.status();
          if (step >= 2) {
            EXPECT_EQ(*there, *cpu.Read(partition.id, version, BytesOf(cluster, partition.id)));
          }
        }
      }
      EXPECT_TRUE(absl::IsAborted(gpu.Read(0, step + 1, BytesOf(cluster, 0)).status()));
      if (step >= 2) {
        EXPECT_TRUE(absl::IsAborted(gpu.Read(0, step - 2, BytesOf(cluster, 0)).status()));
      }
    }
    checksums[in_gpu] = cluster.Checksums();
  }
  EXPECT_EQ(checksums[0], checksums[1]);
  EXPECT_EQ(client_reach_->open_shares, 0);
}

// What has come from another server is read on the host, beside what was there in the GPU.
TEST_F(InGpuClientsTest, ReadOnTheHostWhatHasMoved) {
  TestingCluster cluster(folder_, 2, plan::Accumulate::kExact, 1 << 14,
                         {.client_gpus = client_reach_});
  ASSERT_TRUE(cluster.Configure().ok());
  ParameterService& taker = cluster.service(0);
  std::vector<int> held = plan::PartitionsOf(cluster.shard_map(), 0);
  const std::vector<int> comes = {plan::PartitionsOf(cluster.shard_map(), 1).front()};
  auto reserve = OfTestingJob<proto::ReserveRequest>();
  reserve.set_generation(2);
  reserve.add_partitions(comes.front());
  ASSERT_TRUE(taker.Reserve(reserve).ok());
  auto fetch = OfTestingJob<proto::FetchRequest>();
  fetch.set_generation(2);
  proto::PartitionSource& source = *fetch.add_sources();
  source.set_address("1");
  source.add_partitions(comes.front());
  ASSERT_TRUE(taker.Fetch(fetch).ok());
  held.push_back(comes.front());
  auto begin = OfTestingJob<proto::BeginAttemptRequest>();
  begin.set_step(1);
  begin.set_attempt(1);
  begin.set_generation(2);
  begin.mutable_held()->mutable_partitions()->Assign(held.begin(), held.end());
  ASSERT_TRUE(taker.BeginAttempt(begin).ok());

  TestingClient gpu(&taker, &cluster.client_transport(), 1, 2);
  TestingClient cpu(&taker, &cluster.client_transport(), 2, 2);
  ASSERT_TRUE(gpu.Connect(/*read_only=*/false, /*in_gpu=*/true).ok());
  ASSERT_TRUE(cpu.Connect().ok());
  ASSERT_EQ(gpu.granted().extents_size(), 2);
  EXPECT_TRUE(ReadsWeightsInGpu(gpu.granted()));
  EXPECT_EQ(gpu.granted().extents(1).weights_region(), gpu.granted().extents(1).headers_region());
  for (const int id : held) {
    const auto there = gpu.Read(id, 0, BytesOf(cluster, id));
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_EQ(*there, *cpu.Read(id, 0, BytesOf(cluster, id)));
    EXPECT_EQ(gpu.SendAndWait({.partition = id, .gradient = cluster.Gradient(1, 1, 1, id)}),
              (TestingClient::Answer{}));
  }
}

TEST_F(InGpuClientsTest, AGpuWithoutRoomForWhatComesRefusesIt) {
  TestingCluster::gpus = [](int server, bool reached) {
    auto opened = MakeGpuOpener(server)(server, reached);
    opened->free_bytes = [] { return int64_t{1000}; };
    return opened;
  };
  TestingCluster cluster(folder_, 2, plan::Accumulate::kExact, 1 << 14);
  ASSERT_TRUE(cluster.Configure().ok());
  auto reserve = OfTestingJob<proto::ReserveRequest>();
  reserve.set_generation(2);
  reserve.add_partitions(plan::PartitionsOf(cluster.shard_map(), 1).front());
  const absl::Status refused = cluster.service(0).Reserve(reserve).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_THAT(Text(refused), HasSubstr("which has 1000 B free"));
}

TEST_F(InGpuClientsTest, OneThatDoesNotSeeTheGpuIsServedFromTheHost) {
  TestingCluster cluster(folder_, 2, plan::Accumulate::kFloat, 1 << 14,
                         {.client_gpus = client_reach_});
  ASSERT_TRUE(cluster.Configure().ok());
  for (const int server : {0, 1}) {
    TestingClient client(&cluster.service(server), &cluster.client_transport(), 1, 1);
    ASSERT_TRUE(client.Connect(/*read_only=*/false, /*in_gpu=*/true).ok());
    EXPECT_EQ(client.granted().gpu().empty(), server == 1) << "it sees the first GPU alone";
    const int partition = plan::PartitionsOf(cluster.shard_map(), server).front();
    EXPECT_TRUE(client.Read(partition, 0, BytesOf(cluster, partition)).ok());
  }
}

// Also if part of the job is on other hosts, and if one of the two is converted.
TEST_F(InGpuClientsTest, AreGrantedThereWhatIsPlannedThere) {
  for (const bool local : {true, false}) {
    for (const auto& [wire, gradient] :
         {std::pair(DType::kF32, DType::kF32), std::pair(DType::kF32, DType::kBF16),
          std::pair(DType::kBF16, DType::kF32)}) {
      TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat, 1 << 14,
                             {.client_gpus = client_reach_});
      plan::Job job = cluster.job();
      job.cluster.local = local;
      job.service.wire_type = wire;
      job.service.gradient_type = gradient;
      proto::ConfigureRequest request = cluster.ConfigureRequest(0);
      *request.mutable_job() = plan::ToMessage(job);
      const int64_t before = gpu::Counters().allocated_bytes;
      const auto configured = cluster.service(0).Configure(request);
      ASSERT_TRUE(configured.ok()) << configured.status();
      ASSERT_TRUE(TestingCluster::AdmitWorkers(cluster.service(0)).ok());
      // What it reports to the job's workers.
      const int64_t taken = gpu::Counters().allocated_bytes - before;
      EXPECT_EQ(configured->gpu().gpu(), transport::GpuName(server_reach_->gpu(0).uuid));
      EXPECT_NEAR(static_cast<double>(configured->gpu().taken_bytes()), static_cast<double>(taken),
                  0.01 * static_cast<double>(taken));
      TestingClient client(&cluster.service(0), &cluster.client_transport(), 1, 1);
      ASSERT_TRUE(client.Connect(/*read_only=*/false, /*in_gpu=*/true).ok());
      EXPECT_EQ(gpu::Counters().allocated_bytes - before - taken, configured->gpu().client_bytes());
      const proto::ConnectReply& granted = client.granted();
      EXPECT_EQ(ReadsWeightsInGpu(granted), wire == DType::kF32);
      EXPECT_EQ(granted.payloads_region() != granted.slots_region(), gradient == DType::kF32);
      const plan::ReachedInGpu planned = plan::PlanReachedInGpu(job);
      EXPECT_EQ(planned.weights, wire == DType::kF32);
      EXPECT_EQ(planned.slots, gradient == DType::kF32);
    }
  }
}

TEST_F(InGpuClientsTest, ThoseThatAreGoneGiveTheirSlotsBackAndPushNoMore) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat, 1 << 14,
                         {.client_gpus = client_reach_});
  ASSERT_TRUE(cluster.Configure().ok());
  ASSERT_TRUE(cluster.BeginAttempt(1, 1).ok());
  const int64_t before = gpu::Counters().allocated_bytes;
  {
    TestingClient client(&cluster.service(0), &cluster.client_transport(), 1, 1);
    ASSERT_TRUE(client.Connect(/*read_only=*/false, /*in_gpu=*/true).ok());
    const int64_t slots = client.granted().slots() * client.granted().slot_bytes();
    EXPECT_EQ(gpu::Counters().allocated_bytes - before, plan::SharedGpuBytes(slots));
    PushAll(cluster, 0, client, 1, 1);
    proto::FenceClientRequest fence;
    fence.set_incarnation(1);
    ASSERT_TRUE(cluster.service(0).FenceClient(fence).ok());
    client.Send(0, {.partition = 0, .sequence = 3, .gradient = cluster.Gradient(1, 1, 3, 0)});
    EXPECT_FALSE(client.Connect(/*read_only=*/false, /*in_gpu=*/true).ok());
  }
  for (int tries = 0; tries < 5000 && gpu::Counters().allocated_bytes != before; ++tries) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(gpu::Counters().allocated_bytes, before);
  EXPECT_EQ(client_reach_->open_shares, 0);
  const auto prepared = cluster.service(0).Prepare([] {
    auto request = OfTestingJob<proto::PrepareRequest>();
    request.set_step(1);
    request.set_attempt(1);
    return request;
  }());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(prepared->pushes(), testing::Each(2));
}

TEST_F(InGpuClientsTest, WithoutRoomForSlotsPushesGoOverTheHost) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat, 1 << 14,
                         {.client_gpus = client_reach_});
  ASSERT_TRUE(cluster.Configure().ok());
  ASSERT_TRUE(cluster.BeginAttempt(1, 1).ok());
  gpu::FailCall("cudaMalloc", 1, cudaErrorMemoryAllocation);
  TestingClient client(&cluster.service(0), &cluster.client_transport(), 1, 1);
  ASSERT_TRUE(client.Connect(/*read_only=*/false, /*in_gpu=*/true).ok());
  EXPECT_EQ(client.granted().payloads_region(), client.granted().slots_region());
  EXPECT_TRUE(ReadsWeightsInGpu(client.granted()));
  PushAll(cluster, 0, client, 1, 1);
}

// A client that hangs, or means to, cannot hold ever more of the GPU by coming again in other lives
// or under other names.
TEST_F(InGpuClientsTest, OneThatDoesNotCloseEarlierSlotsPushesOverTheHost) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat, 1 << 14,
                         {.client_gpus = client_reach_});
  plan::Job job = cluster.job();
  job.cluster.workers = 2;
  proto::ConfigureRequest request = cluster.ConfigureRequest(0);
  *request.mutable_job() = plan::ToMessage(job);
  ASSERT_TRUE(cluster.service(0).Configure(request).ok());
  ASSERT_TRUE(TestingCluster::AdmitWorkers(cluster.service(0)).ok());
  ASSERT_TRUE(cluster.BeginAttempt(1, 1).ok());
  const int64_t before = gpu::Counters().allocated_bytes;
  std::vector<std::unique_ptr<TestingClient>> clients;
  const auto in_gpu = [&](uint64_t incarnation, const std::string& name) {
    clients.push_back(std::make_unique<TestingClient>(
        &cluster.service(0), &cluster.client_transport(), incarnation, 1, name));
    const absl::Status connected = clients.back()->Connect(/*read_only=*/false, /*in_gpu=*/true);
    EXPECT_TRUE(connected.ok()) << connected;
    const proto::ConnectReply& granted = clients.back()->granted();
    return granted.payloads_region() != granted.slots_region();
  };
  client_reach_->closes = false;
  EXPECT_TRUE(in_gpu(1, "worker-0"));
  EXPECT_TRUE(in_gpu(1, "worker-0")) << "the first may be on its way to be closed";
  EXPECT_FALSE(in_gpu(1, "worker-0"));
  PushAll(cluster, 0, *clients.back(), 1, 1);
  EXPECT_FALSE(in_gpu(2, "worker-0")) << "another life of the same";
  EXPECT_TRUE(in_gpu(3, "worker-1")) << "another";
  EXPECT_TRUE(in_gpu(4, "worker-2"));
  EXPECT_FALSE(in_gpu(5, "worker-3")) << "more than two workers have";
  client_reach_->closes = true;
  clients.clear();
  for (int tries = 0; tries < 5000 && gpu::Counters().allocated_bytes != before; ++tries) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(in_gpu(1, "worker-0")) << "all are closed";
}

// A job that takes all workers there are serves each of them from its GPU.
TEST_F(InGpuClientsTest, ManyPushThereWhereTheJobDoesNotSayHowManyThereAre) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat, 1 << 14,
                         {.client_gpus = client_reach_});
  plan::Job job = cluster.job();
  job.cluster = {.servers = 0, .workers = 0, .local = false, .coordinator = "127.0.0.1:7700"};
  proto::ConfigureRequest request = cluster.ConfigureRequest(0);
  *request.mutable_job() = plan::ToMessage(job);
  ASSERT_TRUE(cluster.service(0).Configure(request).ok());
  ASSERT_TRUE(TestingCluster::AdmitWorkers(cluster.service(0)).ok());
  std::vector<std::unique_ptr<TestingClient>> clients;
  for (uint64_t i = 1; i <= 5; ++i) {
    clients.push_back(
        std::make_unique<TestingClient>(&cluster.service(0), &cluster.client_transport(), i, 1));
    ASSERT_TRUE(clients.back()->Connect(/*read_only=*/false, /*in_gpu=*/true).ok());
    const proto::ConnectReply& granted = clients.back()->granted();
    EXPECT_NE(granted.payloads_region(), granted.slots_region()) << "client " << i;
  }
}

TEST_F(InGpuClientsTest, AGpuThatFailsTakesNoPushFromItsMemory) {
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat, 1 << 14,
                         {.client_gpus = client_reach_});
  ASSERT_TRUE(cluster.Configure().ok());
  ASSERT_TRUE(cluster.BeginAttempt(1, 1).ok());
  TestingClient client(&cluster.service(0), &cluster.client_transport(), 1, 1);
  ASSERT_TRUE(client.Connect(/*read_only=*/false, /*in_gpu=*/true).ok());
  gpu::FailCall("cudaEventRecord", 1, cudaErrorInvalidValue);
  const auto answer =
      client.SendAndWait({.partition = 0, .sequence = 1, .gradient = cluster.Gradient(1, 1, 1, 0)});
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->code, absl::StatusCode::kInternal);
  EXPECT_THAT(Text(cluster.Prepare(1, 1).status()),
              testing::StartsWith("step 1: adding gradients: cuda:0: adding a push: "));
}

TEST_F(GpuMemoryTest, SaysWhyThereIsNone) {
  TestingCluster::gpus = MakeGpuOpener(7);
  EXPECT_EQ(Text(TestingCluster(folder_, 1, plan::Accumulate::kFloat).Configure()),
            "service.memory cuda: cuda:7: there is no such GPU, this process sees 2; see "
            "CUDA_VISIBLE_DEVICES");
  gpu::SetFakeGpus({.driver = false});
  TestingCluster::gpus = MakeGpuOpener(-1);
  EXPECT_THAT(Text(TestingCluster(folder_, 1, plan::Accumulate::kFloat).Configure()),
              testing::StartsWith("service.memory cuda: no NVIDIA driver: "));
  gpu::SetFakeGpus({.capability = 70});
  EXPECT_THAT(Text(TestingCluster(folder_, 1, plan::Accumulate::kFloat).Configure()),
              HasSubstr("compute capability 7.0, but 8.0 is needed"));
  gpu::SetFakeGpus({.count = 2});
}

TEST_F(GpuMemoryTest, AGpuThatFailsEndsTheStepAndTheServer) {
  gpu::SetFakeGpus({});
  TestingCluster cluster(folder_, 1, plan::Accumulate::kFloat);
  ASSERT_TRUE(cluster.Configure().ok());
  ASSERT_TRUE(cluster.BeginAttempt(1, 1).ok());
  // Sealing fails: this attempt can no longer be prepared, the next one can.
  gpu::FailCall("cudaMemsetAsync", 1, cudaErrorInvalidValue);
  EXPECT_THAT(Text(cluster.Prepare(1, 1).status()),
              testing::StartsWith("step 1: adding gradients: cuda:0: clearing a sum"));
  EXPECT_THAT(Text(cluster.Prepare(1, 1).status()),
              HasSubstr("step 1 attempt 1 failed when it was sealed"));
  ASSERT_TRUE(cluster.BeginAttempt(1, 2).ok());
  ASSERT_TRUE(cluster.Prepare(1, 2).ok());
  // A commit that fails half way leaves nothing to continue from, nor to write.
  gpu::FailCall("cudaMemcpyAsync", 2, cudaErrorInvalidValue);
  EXPECT_THAT(Text(cluster.Commit(1, 2)),
              testing::StartsWith("step 1: updating weights: cuda:0: copying new weights: "));
  EXPECT_THAT(Text(cluster.BeginAttempt(1, 3)), HasSubstr("cuda:0: copying new weights: "));
  auto checkpoint = OfTestingJob<proto::WriteCheckpointRequest>();
  checkpoint.set_version(0);
  checkpoint.set_directory(folder_);
  EXPECT_THAT(Text(cluster.service(0).WriteCheckpoint(checkpoint).status()),
              HasSubstr("cuda:0: copying new weights: "));
  EXPECT_FALSE(cluster.service(0).GetChecksums(OfTestingJob<proto::GetChecksumsRequest>()).ok());
}

}  // namespace
}  // namespace shoal::server

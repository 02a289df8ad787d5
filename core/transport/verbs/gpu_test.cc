// Regions of GPU memory: the GPU sees what arrives in them before anybody learns of it. The GPU is
// a stand-in, its memory is this process's.
#include <algorithm>
#include <atomic>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/gpu_memory.h"
#include "core/transport/testing/conformance.h"
#include "core/transport/verbs/testing/fake_verbs.h"
#include "core/transport/verbs/transport.h"

namespace shoal::transport {
namespace {

// Records at each flush what had arrived by then.
class WatchfulGpu final : public GpuMemory {
 public:
  WatchfulGpu() : memory(kMiB) {
    device_.name = "GPU 0";
    device_.remote_writes = RemoteWrites::kFlushed;
  }
  int gpus() const override { return 1; }
  const GpuDevice& gpu(int) const override { return device_; }
  absl::StatusOr<std::optional<GpuAllocation>> Find(const void* address) override {
    const auto at = reinterpret_cast<uintptr_t>(address);
    const auto begin = reinterpret_cast<uintptr_t>(memory.data());
    if (at < begin || at >= begin + memory.size()) {
      return std::nullopt;
    }
    return GpuAllocation{.gpu = 0, .begin = begin, .bytes = static_cast<int64_t>(memory.size())};
  }
  absl::Status Prepare(const void*) override { return absl::OkStatus(); }
  absl::StatusOr<UniqueFd> ExportDmaBuf(const void*, int64_t, DmaBufMapping) override {
    return Unimplemented("no dma-buf here");
  }
  absl::StatusOr<GpuShare> Share(std::span<const std::byte>) override {
    return Unimplemented("not shared");
  }
  absl::StatusOr<OpenedShare> Open(const GpuShare&) override { return Unimplemented("not shared"); }
  void Close(const OpenedShare&) override {}
  absl::Status FlushRemoteWrites(int) override {
    flushed_ = memory;
    ++flushes;
    return flush_status;
  }
  absl::Status Copy(std::span<const GpuCopy>) override {
    return Unimplemented("devices read and write this memory themselves");
  }
  bool PinsReadOnly() const override { return false; }
  absl::Status Pin(std::span<const std::byte>, bool) override { return Unimplemented("no need"); }
  void Unpin(std::span<const std::byte>) override {}

  // What the GPU sees.
  const std::vector<std::byte>& visible() const { return flushed_; }

  std::vector<std::byte> memory;
  std::atomic<int> flushes{0};
  absl::Status flush_status;

 private:
  GpuDevice device_;
  std::vector<std::byte> flushed_;
};

class VerbsGpuTest : public testing::Test {
 protected:
  std::unique_ptr<Side> MakeSide(const std::string& address, std::shared_ptr<GpuMemory> gpu) {
    TransportOptions options;
    options.gpu_memory = std::move(gpu);
    auto transport =
        CreateVerbsTransport(options, fabric_.AddHost({FakeDevice::Ethernet("mlx5_0", address)}));
    EXPECT_TRUE(transport.ok()) << Describe(transport.status());
    return std::make_unique<Side>(*std::move(transport));
  }
  FakeFabric fabric_{{.seed = TestSeed()}};
};

TEST_F(VerbsGpuTest, AReadIntoGpuMemoryIsVisibleWhenItCompletes) {
  auto gpu = std::make_shared<WatchfulGpu>();
  auto worker = MakeSide("10.0.0.1", gpu);
  auto server = MakeSide("10.0.0.2", nullptr);
  Random random(TestSeed(), 1);
  auto weights = server->Allocate(100000, Access::kRemoteRead);
  FillRandom(weights->bytes(), random);
  auto on_gpu =
      worker->transport().Register(std::span(gpu->memory).subspan(4096, 100000), Access::kLocal);
  ASSERT_TRUE(on_gpu.ok()) << Describe(on_gpu.status());
  Pair pair = Connect(*worker, worker->Options(), *server, server->Options({weights}));
  EXPECT_EQ(gpu->flushes, 0) << "nothing of the GPU's was moved";
  ASSERT_TRUE(ReadNow(*worker, *pair.connector,
                      {.id = 1, .region = 0, .offset = 0, .into = (*on_gpu)->bytes()})
                  .ok());
  EXPECT_GT(gpu->flushes, 0);
  EXPECT_TRUE(
      std::ranges::equal(std::span(gpu->visible()).subspan(4096, 100000), weights->bytes()));
}

TEST_F(VerbsGpuTest, ADoorbellComesWhenWhatItAnnouncesIsVisible) {
  auto gpu = std::make_shared<WatchfulGpu>();
  auto worker = MakeSide("10.0.0.1", nullptr);
  auto server = MakeSide("10.0.0.2", gpu);
  auto slots =
      server->transport().Register(std::span(gpu->memory).first(65536), Access::kRemoteWrite);
  ASSERT_TRUE(slots.ok()) << Describe(slots.status());
  auto gradient = worker->Allocate(65536, Access::kLocal);
  Pair pair = Connect(*worker, worker->Options(), *server, server->Options({*slots}));
  for (int round = 1; round < 20; ++round) {
    std::ranges::fill(gradient->bytes(), static_cast<std::byte>(round));
    ASSERT_TRUE(WriteNow(*worker, *pair.connector,
                         {.id = 1,
                          .region = 0,
                          .offset = 0,
                          .from = gradient->bytes(),
                          .ring = true,
                          .immediate = 7})
                    .ok());
    ASSERT_EQ(server->Collect(1).size(), 1u);
    ASSERT_TRUE(std::ranges::all_of(std::span(gpu->visible()).first(65536), [&](std::byte byte) {
      return byte == static_cast<std::byte>(round);
    })) << round;
  }
}

TEST_F(VerbsGpuTest, WhatCannotBeMadeVisibleEndsTheConnection) {
  auto gpu = std::make_shared<WatchfulGpu>();
  auto worker = MakeSide("10.0.0.1", gpu);
  auto server = MakeSide("10.0.0.2", nullptr);
  auto weights = server->Allocate(4096, Access::kRemoteRead);
  auto on_gpu = worker->transport().Register(std::span(gpu->memory).first(4096), Access::kLocal);
  ASSERT_TRUE(on_gpu.ok());
  Pair pair = Connect(*worker, worker->Options(), *server, server->Options({weights}));
  gpu->flush_status = Internal("the GPU fell off the bus");
  const ReadOperation read = {.id = 5, .region = 0, .offset = 0, .into = (*on_gpu)->bytes()};
  ASSERT_TRUE(pair.connector->PostReads({&read, 1}).ok());
  const std::vector<Event> events = worker->CollectUntilClosed(pair.connector->id());
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].operation, 5u);
  EXPECT_FALSE(events[0].status.ok());
  EXPECT_THAT(Message(events[1].status), testing::HasSubstr("fell off the bus"));
}

TEST_F(VerbsGpuTest, HostMemoryAsksNothingOfTheGpu) {
  auto gpu = std::make_shared<WatchfulGpu>();
  auto worker = MakeSide("10.0.0.1", gpu);
  auto server = MakeSide("10.0.0.2", gpu);
  auto remote = server->Allocate(4096, Access::kRemoteWrite);
  auto local = worker->Allocate(4096, Access::kLocal);
  Pair pair = Connect(*worker, worker->Options(), *server, server->Options({remote}));
  ASSERT_TRUE(
      ReadNow(*worker, *pair.connector, {.id = 1, .region = 0, .offset = 0, .into = local->bytes()})
          .ok());
  ASSERT_TRUE(WriteNow(*worker, *pair.connector,
                       {.id = 2, .region = 0, .offset = 0, .from = local->bytes(), .ring = true})
                  .ok());
  ASSERT_EQ(server->Collect(1).size(), 1u);
  EXPECT_EQ(gpu->flushes, 0);
  EXPECT_TRUE(worker->transport().statistics().gpu_ranges.empty());
}

TEST_F(VerbsGpuTest, StatisticsTellHowRangesAreReached) {
  auto gpu = std::make_shared<WatchfulGpu>();
  auto worker = MakeSide("10.0.0.1", gpu);
  using testing::ElementsAre;
  using testing::Pair;
  auto first = worker->transport().Register(std::span(gpu->memory).first(4096), Access::kLocal);
  auto second = worker->transport().Register(std::span(gpu->memory).last(4096), Access::kLocal);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(worker->transport().statistics().gpu_ranges, ElementsAre(Pair("peer_memory", 2)));
  EXPECT_TRUE(MakeSide("10.0.0.2", nullptr)->transport().statistics().gpu_ranges.empty());
}

}  // namespace
}  // namespace shoal::transport

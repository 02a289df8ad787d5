// shm over regions in GPU memory, which peers open: on fake GPUs, whose memory the processor
// cannot touch. Both sides are in this process, each with its own way to the GPUs.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/bytes.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/transport/cuda/testing/fake_gpu_memory.h"
#include "core/transport/shm/handshake.h"
#include "core/transport/shm/transport.h"
#include "core/transport/testing/conformance.h"

namespace shoal::transport {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 20 * kMiB + 4096;  // more than one copy of a GPU

// Memory of the fake GPU with that number.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t size, int gpu = 0) : size_(size) {
    cudaSetDevice(gpu);
    void* data = nullptr;
    EXPECT_EQ(cudaMalloc(&data, size), cudaSuccess);
    cudaSetDevice(0);
    data_ = static_cast<std::byte*>(data);
  }
  ~DeviceBytes() { EXPECT_EQ(Free(), cudaSuccess); }
  cudaError_t Free() {
    const cudaError_t freed = cudaFree(data_);
    data_ = freed == cudaSuccess ? nullptr : data_;
    cudaGetLastError();
    return freed;
  }
  std::span<std::byte> span() const { return {data_, size_}; }
  void Set(std::span<const std::byte> bytes) const {
    ASSERT_EQ(cudaMemcpy(data_, bytes.data(), bytes.size(), cudaMemcpyDefault), cudaSuccess);
  }
  std::vector<std::byte> Get() const {
    std::vector<std::byte> bytes(size_);
    EXPECT_EQ(cudaMemcpy(bytes.data(), data_, size_, cudaMemcpyDefault), cudaSuccess);
    return bytes;
  }

 private:
  const size_t size_;
  std::byte* data_ = nullptr;
};

// Everything that holds without GPU regions also holds with them.
INSTANTIATE_TEST_SUITE_P(ShmWithGpus, ConformanceTest,
                         testing::Values(TransportUnderTest{"shm",
                                                            [] {
                                                              TransportOptions options;
                                                              options.gpu_memory =
                                                                  std::make_shared<FakeGpuMemory>();
                                                              return *CreateShmTransport(options);
                                                            }}),
                         NameOf);

class ShmShareTest : public testing::Test {
 protected:
  ShmShareTest() { gpu::SetFakeGpus({.count = 2, .seed = TestSeed()}); }
  static std::unique_ptr<Side> MakeSide(std::shared_ptr<GpuMemory> gpu) {
    TransportOptions options;
    options.gpu_memory = std::move(gpu);
    return std::make_unique<Side>(*CreateShmTransport(options));
  }
  std::vector<std::byte> RandomBytes(size_t size) {
    std::vector<std::byte> bytes(size);
    FillRandom(bytes, random_);
    return bytes;
  }
  static ConnectionOptions Opening(Side& side, std::string peer = "peer") {
    ConnectionOptions options = side.Options({}, std::move(peer));
    options.opens_gpu_memory = true;
    return options;
  }
  // Returns what the connecting side learns when it cannot complete the handshake.
  static absl::Status Refused(Side& worker, Side& server, const ConnectionOptions& exposing) {
    auto connector = *worker.transport().Offer(Opening(worker, "server-1"));
    const auto accepted = server.transport().Accept(connector->offer(), exposing);
    EXPECT_TRUE(accepted.ok()) << accepted.status();
    const absl::Status status = connector->Complete(accepted->answer).status();
    EXPECT_FALSE(status.ok());
    server.CollectUntilClosed(accepted->connection->id());  // it learns too
    return status;
  }

  Random random_{TestSeed()};
  const std::shared_ptr<FakeGpuMemory> server_gpu_ = std::make_shared<FakeGpuMemory>();
  const std::shared_ptr<FakeGpuMemory> worker_gpu_ = std::make_shared<FakeGpuMemory>();
};

TEST_F(ShmShareTest, ItIsSaidWhoCanExposeIt) {
  const auto with = MakeSide(server_gpu_);
  const auto without = MakeSide(nullptr);
  EXPECT_TRUE(with->transport().capabilities().exposes_gpu_memory);
  EXPECT_FALSE(without->transport().capabilities().exposes_gpu_memory);
}

// Reads and writes of all kinds of memory here, among regions of both kinds there.
TEST_F(ShmShareTest, OperationsAtRandomOffsetsMatchTheOracle) {
  const DeviceBytes memory(kBytes + 512);
  const DeviceBytes own_memory(kBytes);
  const auto server = MakeSide(server_gpu_);
  const auto worker = MakeSide(worker_gpu_);
  const std::span<std::byte> exposed = memory.span().subspan(512);  // within its allocation
  const auto on_gpu = *server->transport().Register(exposed, Access::kRemoteWrite);
  EXPECT_EQ(on_gpu->bytes().data(), exposed.data());
  const auto before = server->Allocate(kBytes, Access::kRemoteWrite);
  const auto after = server->Allocate(4096, Access::kRemoteRead);
  const auto frame = *worker->transport().Register(own_memory.span(), Access::kLocal);
  const auto host_buffer = worker->Allocate(kBytes, Access::kLocal);
  Pair pair = Connect(*worker, Opening(*worker), *server, server->Options({before, on_gpu, after}));
  EXPECT_EQ(pair.connector->remote_region_sizes(), (std::vector<int64_t>{kBytes, kBytes, 4096}));
  EXPECT_EQ(worker_gpu_->open_shares, 1);

  std::vector<std::byte> there = RandomBytes(kBytes);
  std::vector<std::byte> whole(512);
  whole.insert(whole.end(), there.begin(), there.end());
  memory.Set(whole);
  for (int i = 0; i < 24; ++i) {
    const size_t size = 1 + random_.Below(i % 4 == 0 ? kBytes : 5000);
    const size_t offset = random_.Below(kBytes - size + 1);
    const size_t at = random_.Below(kBytes - size + 1);
    const bool from_gpu = i % 2 == 0;
    const std::span<std::byte> own =
        (from_gpu ? own_memory.span() : host_buffer->bytes()).subspan(at, size);
    const auto here = [&] {
      std::vector<std::byte> bytes(size);
      EXPECT_EQ(cudaMemcpy(bytes.data(), own.data(), size, cudaMemcpyDefault), cudaSuccess);
      return bytes;
    };
    if (i % 3 != 0) {
      ASSERT_TRUE(
          ReadNow(*worker, *pair.connector,
                  {.id = 1, .region = 1, .offset = static_cast<int64_t>(offset), .into = own})
              .ok());
      ASSERT_EQ(here(), std::vector(there.begin() + static_cast<std::ptrdiff_t>(offset),
                                    there.begin() + static_cast<std::ptrdiff_t>(offset + size)));
      continue;
    }
    const std::vector<std::byte> bytes = RandomBytes(size);
    ASSERT_EQ(cudaMemcpy(own.data(), bytes.data(), size, cudaMemcpyDefault), cudaSuccess);
    ASSERT_TRUE(WriteNow(*worker, *pair.connector,
                         {.id = 2,
                          .region = 1,
                          .offset = static_cast<int64_t>(offset),
                          .from = own,
                          .ring = true,
                          .immediate = static_cast<uint32_t>(i)})
                    .ok());
    const std::vector<Event> rung = server->Collect(1);
    ASSERT_EQ(rung.size(), 1u);
    EXPECT_EQ(rung[0].immediate, static_cast<uint32_t>(i));
    std::ranges::copy(bytes, there.begin() + static_cast<std::ptrdiff_t>(offset));
    const std::vector<std::byte> now = memory.Get();
    ASSERT_TRUE(std::ranges::equal(std::span(now).subspan(512), there));
  }
  // The server's own operations, from its GPU memory towards the worker's.
  auto acknowledgements = worker->Allocate(4096, Access::kRemoteWrite);
  Pair back = Connect(*worker, worker->Options({acknowledgements}), *server, server->Options({}));
  ASSERT_TRUE(WriteNow(*server, *back.acceptor,
                       {.id = 3, .region = 0, .offset = 0, .from = exposed.first(4096)})
                  .ok());
  EXPECT_TRUE(std::ranges::equal(acknowledgements->bytes(), std::span(there).first(4096)));
}

TEST_F(ShmShareTest, BoundsAndRightsHold) {
  const DeviceBytes memory(4096);
  const auto server = MakeSide(server_gpu_);
  const auto worker = MakeSide(worker_gpu_);
  const auto weights = *server->transport().Register(memory.span(), Access::kRemoteRead);
  const auto own = worker->Allocate(8192, Access::kLocal);
  Pair pair = Connect(*worker, Opening(*worker), *server, server->Options({weights}));
  const WriteOperation write = {.id = 1, .region = 0, .offset = 0, .from = own->bytes().first(64)};
  EXPECT_EQ(pair.connector->PostWrites({&write, 1}).code(), absl::StatusCode::kPermissionDenied);
  const ReadOperation read = {.id = 1, .region = 0, .offset = 4000, .into = own->bytes().first(97)};
  EXPECT_EQ(pair.connector->PostReads({&read, 1}).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(worker_gpu_->copies, 0);
}

TEST_F(ShmShareTest, ItIsOpenForAsLongAsItIsConnected) {
  DeviceBytes memory(4096);
  const auto server = MakeSide(server_gpu_);
  const auto worker = MakeSide(worker_gpu_);
  auto weights = *server->transport().Register(memory.span(), Access::kRemoteRead);
  for (int i = 0; i < 2; ++i) {
    Pair pair = Connect(*worker, Opening(*worker), *server, server->Options({weights}));
    EXPECT_EQ(worker_gpu_->open_shares, 1);
    EXPECT_EQ(memory.Free(), cudaErrorInvalidValue) << "the fake keeps what is open";
    if (i == 0) {
      pair.connector->Close();
    } else {
      pair.acceptor->Close();
      worker->CollectUntilClosed(pair.connector->id());
    }
    EXPECT_EQ(worker_gpu_->open_shares, 0);
  }
}

// Whichever side closes, and without a wait: memory is freed once nobody has it open.
TEST_F(ShmShareTest, ItStaysUntilThePeerHasClosedIt) {
  const DeviceBytes memory(4096);
  const auto server = MakeSide(server_gpu_);
  const auto worker = MakeSide(worker_gpu_);
  for (int i = 0; i < 30; ++i) {
    const auto open_at_the_end = std::make_shared<std::atomic<int64_t>>(-1);
    auto weights = *server->transport().Register(memory.span(), Access::kRemoteRead);
    std::shared_ptr<Region> exposed(weights.get(),
                                    [gpu = worker_gpu_, open_at_the_end, weights](Region*) {
                                      *open_at_the_end = gpu->open_shares.load();
                                    });
    const std::weak_ptr<Region> watched = exposed;
    ConnectionOptions options = server->Options({exposed});
    Pair pair = Connect(*worker, Opening(*worker), *server, options);
    EXPECT_EQ(worker_gpu_->open_shares, 1);
    options.exposed.clear();
    exposed.reset();
    pair.acceptor->Close();
    server->CollectUntilClosed(pair.acceptor->id());
    pair.acceptor.reset();
    for (int tries = 0; tries < 5000 && !watched.expired(); ++tries) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_TRUE(watched.expired());
    EXPECT_EQ(*open_at_the_end, 0);
  }
}

// As when a server ends while its clients are connected.
TEST_F(ShmShareTest, ATransportThatGoesWaitsForItsPeersToCloseIt) {
  const DeviceBytes memory(4096);
  for (int i = 0; i < 30; ++i) {
    auto server = MakeSide(server_gpu_);
    const auto worker = MakeSide(worker_gpu_);
    auto weights = *server->transport().Register(memory.span(), Access::kRemoteRead);
    Pair pair = Connect(*worker, Opening(*worker), *server, server->Options({weights}));
    weights.reset();
    pair.acceptor.reset();
    server.reset();
    EXPECT_EQ(worker_gpu_->open_shares, 0);
  }
}

TEST_F(ShmShareTest, ItIsSaidWhoseMemoryIsOpened) {
  const auto both =
      MakeSide(std::make_shared<FakeGpuMemory>(/*pins_read_only=*/false, std::vector<int>{1, 0}));
  const std::vector<std::string> names = both->transport().capabilities().opens_gpus;
  const auto with = MakeSide(server_gpu_);
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(with->transport().capabilities().opens_gpus, std::vector<std::string>{names[1]});
  EXPECT_TRUE(MakeSide(nullptr)->transport().capabilities().opens_gpus.empty());
}

TEST_F(ShmShareTest, APeerThatDoesNotReachItIsToldAndTakesAnotherTransport) {
  const DeviceBytes memory(4096);
  const auto server = MakeSide(server_gpu_);
  const auto weights = *server->transport().Register(memory.span(), Access::kRemoteRead);
  const auto without = MakeSide(nullptr);
  const absl::Status none = Refused(*without, *server, server->Options({weights}));
  EXPECT_EQ(none.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(none)), HasSubstr("server-1: it exposes memory of GPU-"));
  EXPECT_THAT(std::string(Message(none)), HasSubstr("uses no GPU; use tcp"));
  const auto elsewhere =
      MakeSide(std::make_shared<FakeGpuMemory>(/*pins_read_only=*/false, std::vector<int>{1}));
  const absl::Status other = Refused(*elsewhere, *server, server->Options({weights}));
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(other)), HasSubstr("which this process does not see"));
  // A peer that sees both GPUs reaches it, whichever it computes on.
  const auto both =
      MakeSide(std::make_shared<FakeGpuMemory>(/*pins_read_only=*/false, std::vector<int>{1, 0}));
  Connect(*both, Opening(*both), *server, server->Options({weights}));
}

// As servers do, which have no use for it.
TEST_F(ShmShareTest, ASideThatOpensNoneRefusesAPeerThatExposesSome) {
  const DeviceBytes memory(4096);
  const auto server = MakeSide(server_gpu_);
  const auto worker = MakeSide(worker_gpu_);
  const auto exposed = *worker->transport().Register(memory.span(), Access::kRemoteWrite);
  for (const bool opens : {false, true}) {
    auto connector = *worker->transport().Offer(worker->Options({exposed}));
    ConnectionOptions accepting = server->Options();
    accepting.opens_gpu_memory = opens;
    const auto accepted = *server->transport().Accept(connector->offer(), accepting);
    const auto connection = connector->Complete(accepted.answer);
    EXPECT_EQ(server_gpu_->open_shares, opens ? 1 : 0);
    if (!opens) {
      EXPECT_EQ(connection.status().code(), absl::StatusCode::kPermissionDenied);
      EXPECT_THAT(std::string(Message(connection.status())), HasSubstr("this side opens none"));
      const std::vector<Event> told = server->CollectUntilClosed(accepted.connection->id());
      EXPECT_EQ(told.back().status.code(), absl::StatusCode::kPermissionDenied);
    }
  }
  // The same for the connecting side.
  const auto weights = *server->transport().Register(memory.span(), Access::kRemoteRead);
  auto connector = *worker->transport().Offer(worker->Options());
  const auto accepted = *server->transport().Accept(connector->offer(), server->Options({weights}));
  EXPECT_EQ(connector->Complete(accepted.answer).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(worker_gpu_->open_shares, 0);
}

TEST_F(ShmShareTest, AStaleHandleIsRefused) {
  const auto server = MakeSide(server_gpu_);
  const auto worker = MakeSide(worker_gpu_);
  std::shared_ptr<Region> weights;
  {
    const DeviceBytes memory(4096);
    weights = *server->transport().Register(memory.span(), Access::kRemoteRead);
  }
  const absl::Status status = Refused(*worker, *server, server->Options({weights}));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("cudaErrorInvalidResourceHandle"));
}

TEST_F(ShmShareTest, NothingInAShareIsTrusted) {
  const DeviceBytes memory(4096);
  const GpuShare good = *server_gpu_->Share(memory.span());
  GpuShare share = good;
  share.bytes = 4097;
  EXPECT_EQ(worker_gpu_->Open(share).status().code(), absl::StatusCode::kInvalidArgument);
  share = good;
  share.offset = -1;
  EXPECT_EQ(worker_gpu_->Open(share).status().code(), absl::StatusCode::kInvalidArgument);
  share = good;
  share.allocation[8] ^= 1;  // now another process's
  EXPECT_THAT(std::string(Message(worker_gpu_->Open(share).status())),
              HasSubstr("cudaErrorMapBufferObjectFailed"));
  share.allocation.fill('x');
  EXPECT_EQ(worker_gpu_->Open(share).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(worker_gpu_->open_shares, 0);
}

TEST(ShmOffers, AreReadAsWrittenAndMalformedOnesRefused) {
  std::vector<ShmRegionOffer> offers = {
      {.region = {.bytes = 4096, .writable = true}},
      {.region = {.bytes = 64, .writable = false}, .share = GpuShare{.offset = 512, .bytes = 64}}};
  offers[1].share->gpu.fill('g');
  offers[1].share->allocation.fill('a');
  ByteWriter writer;
  WriteOffers(offers, writer);
  ByteReader reader(writer.bytes());
  const auto read = *ReadOffers("peer", reader);
  EXPECT_TRUE(reader.complete());
  ASSERT_EQ(read.size(), 2u);
  EXPECT_FALSE(read[0].share.has_value());
  ASSERT_TRUE(read[1].share.has_value());
  EXPECT_EQ(read[1].share->gpu, offers[1].share->gpu);
  EXPECT_EQ(read[1].share->allocation, offers[1].share->allocation);
  EXPECT_EQ(read[1].share->offset, 512);
  EXPECT_EQ(read[1].share->bytes, 64);
  for (size_t size = 0; size < writer.bytes().size(); ++size) {
    ByteReader cut(std::string_view(writer.bytes()).substr(0, size));
    EXPECT_FALSE(ReadOffers("peer", cut).ok()) << size;
  }
}

}  // namespace
}  // namespace shoal::transport

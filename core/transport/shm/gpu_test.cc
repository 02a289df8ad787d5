// shm into and out of GPU memory, which the processor cannot touch.
#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/transport/shm/transport.h"
#include "core/transport/testing/conformance.h"
#include "core/transport/testing/guarded_gpu.h"

namespace shoal::transport {
namespace {

constexpr int64_t kGpuBytes = 80 * kMiB;
constexpr size_t kBytes = 70 * kMiB;  // more than one batch of a GPU's copies

// Runs for both kinds of GPU: those that can pin memory mapped read-only, and others.
class ShmGpuTest : public testing::TestWithParam<bool> {
 protected:
  static std::unique_ptr<Side> MakeSide(std::shared_ptr<GpuMemory> gpu, bool gpu_job = true) {
    TransportOptions options;
    options.gpu_memory = std::move(gpu);
    options.gpu_job = gpu_job;
    return std::make_unique<Side>(*CreateShmTransport(options));
  }

  const std::shared_ptr<GuardedGpu> gpu_ = std::make_shared<GuardedGpu>(kGpuBytes, GetParam());
  const std::unique_ptr<Side> worker_ = MakeSide(gpu_);
  const std::unique_ptr<Side> server_ = MakeSide(nullptr);
  Random random_{TestSeed()};
};

TEST_P(ShmGpuTest, ReadsLandOnTheGpu) {
  auto weights = server_->Allocate(kBytes, Access::kRemoteRead);
  FillRandom(weights->bytes(), random_);
  const auto frame = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  EXPECT_EQ(gpu_->pinned(), 0u) << "nothing was copied by a GPU yet";
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(
        ReadNow(*worker_, *pair.connector,
                {.id = 1, .region = 0, .offset = 100, .into = gpu_->memory().first(kBytes - 100)})
            .ok());
    EXPECT_TRUE(
        std::ranges::equal(weights->bytes().subspan(100), gpu_->contents().first(kBytes - 100)));
    EXPECT_EQ(gpu_->pinned(), 1u);
    std::ranges::fill(gpu_->contents(), std::byte{0});
  }
  EXPECT_EQ(gpu_->batches(), 2 * 2);
  pair.connector->Close();
  EXPECT_EQ(gpu_->pinned(), 0u);
}

TEST_P(ShmGpuTest, ReadsOfOnePostAreOneBatch) {
  auto weights = server_->Allocate(32 * 4096, Access::kRemoteRead);
  FillRandom(weights->bytes(), random_);
  const auto frame = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  auto on_host = worker_->Allocate(4096, Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  std::vector<ReadOperation> reads;
  for (uint64_t i = 0; i < 32; ++i) {
    const size_t at = i * 4096;
    reads.push_back({.id = i,
                     .region = 0,
                     .offset = static_cast<int64_t>(at),
                     .into = gpu_->memory().subspan(at, i == 9 ? 0 : 4096)});
  }
  reads[20].into = on_host->bytes();
  ASSERT_TRUE(pair.connector->PostReads(reads).ok());
  std::set<uint64_t> done;
  for (const Event& event : worker_->Collect(32)) {
    EXPECT_TRUE(event.status.ok());
    done.insert(event.operation);
  }
  EXPECT_EQ(done.size(), 32u);
  EXPECT_EQ(gpu_->batches(), 3) << "the empty one and the one into the host's memory lie between";
  for (size_t i = 0; i < 32; ++i) {
    if (i != 9) {
      EXPECT_TRUE(std::ranges::equal(
          weights->bytes().subspan(i * 4096, 4096),
          i == 20 ? on_host->bytes() : gpu_->contents().subspan(i * 4096, 4096)));
    }
  }
}

// Nobody should have to wait while all of it is pinned.
TEST_P(ShmGpuTest, APeersMemoryIsPinnedInPiecesAsItIsRead) {
  constexpr int64_t kPiece = 256 * kMiB;
  auto weights = server_->Allocate(2 * kPiece + 4096, Access::kRemoteRead);
  const auto around = weights->bytes().subspan(kPiece - 4096, 8192);
  FillRandom(around, random_);
  const auto frame = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  const auto read = [&](int64_t offset, size_t bytes) {
    return ReadNow(*worker_, *pair.connector,
                   {.id = 1, .region = 0, .offset = offset, .into = gpu_->memory().first(bytes)});
  };
  ASSERT_TRUE(read(2 * kPiece, 4096).ok());
  EXPECT_EQ(gpu_->pinned(), 1u);
  ASSERT_TRUE(read(kPiece - 4096, 8192).ok());
  EXPECT_EQ(gpu_->pinned(), 3u);
  EXPECT_TRUE(std::ranges::equal(around, gpu_->contents().first(8192)));
  pair.connector->Close();
  EXPECT_EQ(gpu_->pinned(), 0u);
}

TEST_P(ShmGpuTest, InAJobOfCpusWeightsStaySealed) {
  const auto server = MakeSide(nullptr, /*gpu_job=*/false);
  const auto worker = MakeSide(gpu_, /*gpu_job=*/false);
  EXPECT_EQ(worker->transport().capabilities().slow_gpu_reads.empty(), GetParam());
  EXPECT_EQ(worker_->transport().capabilities().slow_gpu_reads, "");
  auto weights = server->Allocate(4096, Access::kRemoteRead);
  FillRandom(weights->bytes(), random_);
  const auto frame = *worker->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker, worker->Options(), *server, server->Options({weights}));
  ASSERT_TRUE(ReadNow(*worker, *pair.connector,
                      {.id = 1, .region = 0, .offset = 0, .into = gpu_->memory().first(4096)})
                  .ok());
  EXPECT_EQ(gpu_->pinned(), GetParam() ? 1u : 0u);
  EXPECT_TRUE(std::ranges::equal(weights->bytes(), gpu_->contents().first(4096)));
}

TEST_P(ShmGpuTest, WhatAGpuCopiesFromIsNotWrittenByPosts) {
  auto weights = server_->Allocate(4096, Access::kRemoteRead);
  const auto frame = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  const WriteOperation write = {
      .id = 1, .region = 0, .offset = 0, .from = gpu_->memory().first(64)};
  EXPECT_FALSE(pair.connector->PostWrites({&write, 1}).ok());
}

TEST_P(ShmGpuTest, WritesComeFromTheGpu) {
  auto slots = server_->Allocate(kBytes, Access::kRemoteWrite);
  FillRandom(gpu_->contents(), random_);
  const auto gradient = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({slots}));
  ASSERT_TRUE(WriteNow(*worker_, *pair.connector,
                       {.id = 1,
                        .region = 0,
                        .offset = 0,
                        .from = gpu_->memory().first(kBytes),
                        .ring = true,
                        .immediate = 7})
                  .ok());
  const std::vector<Event> rung = server_->Collect(1);
  ASSERT_EQ(rung.size(), 1u);
  EXPECT_EQ(rung[0].immediate, 7u);
  EXPECT_TRUE(std::ranges::equal(slots->bytes(), gpu_->contents().first(kBytes)));
}

TEST_P(ShmGpuTest, MemoryOfTheHostGoesAsBefore) {
  auto weights = server_->Allocate(4096, Access::kRemoteRead);
  FillRandom(weights->bytes(), random_);
  auto frame = worker_->Allocate(4096, Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  ASSERT_TRUE(ReadNow(*worker_, *pair.connector,
                      {.id = 1, .region = 0, .offset = 0, .into = frame->bytes()})
                  .ok());
  EXPECT_TRUE(std::ranges::equal(weights->bytes(), frame->bytes()));
  EXPECT_EQ(gpu_->copies(), 0);
}

TEST_P(ShmGpuTest, WithoutPinningItIsTheSameAndSlower) {
  gpu_->FailPins(Unimplemented("of the test"));
  auto weights = server_->Allocate(4096, Access::kRemoteRead);
  FillRandom(weights->bytes(), random_);
  const auto frame = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  ASSERT_TRUE(ReadNow(*worker_, *pair.connector,
                      {.id = 1, .region = 0, .offset = 0, .into = gpu_->memory().first(4096)})
                  .ok());
  EXPECT_TRUE(std::ranges::equal(weights->bytes(), gpu_->contents().first(4096)));
}

TEST_P(ShmGpuTest, ACopyThatFailsFailsItsOperation) {
  gpu_->FailCopies(Internal("the GPU fell off the bus"));
  auto weights = server_->Allocate(4096, Access::kRemoteRead);
  const auto frame = *worker_->transport().Register(gpu_->memory(), Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({weights}));
  const absl::Status status =
      ReadNow(*worker_, *pair.connector,
              {.id = 1, .region = 0, .offset = 0, .into = gpu_->memory().first(4096)});
  EXPECT_THAT(std::string(Message(status)), testing::HasSubstr("fell off the bus"));
}

INSTANTIATE_TEST_SUITE_P(Gpus, ShmGpuTest, testing::Bool(), [](const auto& info) {
  return info.param ? "PinsReadOnly" : "PinsWritable";
});

}  // namespace
}  // namespace shoal::transport

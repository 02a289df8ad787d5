#include "core/gpu/caching_pool.h"

#include <map>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/random.h"
#include "core/gpu/fake_cuda/fake_cuda.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::gpu {
namespace {

using testing::HasSubstr;

class CachingPoolTest : public testing::Test {
 protected:
  void SetUp() override { Make(kGiB); }
  void TearDown() override {
    pool_.reset();
    context_.reset();
    EXPECT_EQ(Counters().allocated_bytes, 0);
    EXPECT_EQ(Counters().host_bytes, 0);
    EXPECT_EQ(Counters().events, 0);
    EXPECT_EQ(Counters().streams, 0);
  }

  void Make(int64_t budget, const FakeGpuOptions& gpus = {},
            CachingPool::Kind kind = CachingPool::Kind::kDevice) {
    pool_.reset();
    context_.reset();
    SetFakeGpus(gpus);
    absl::StatusOr<std::unique_ptr<CudaContext>> context = CudaContext::Create(0, RealClock());
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
    pool_ = std::make_unique<CachingPool>(*context_, kind, "cuda:0", "raise the budget", budget);
  }
  std::byte* Take(int64_t bytes) {
    const absl::StatusOr<std::byte*> piece = pool_->Take(bytes);
    EXPECT_TRUE(piece.ok()) << piece.status();
    return piece.value_or(nullptr);
  }

  std::unique_ptr<CudaContext> context_;
  std::unique_ptr<CachingPool> pool_;
};

TEST_F(CachingPoolTest, AsksTheDriverForNothingInSteadyState) {
  const auto round = [this] {
    std::vector<std::pair<std::byte*, int64_t>> pieces;
    for (const int64_t bytes : {100 * kMiB, 3 * kMiB, int64_t{1}, 20 * kMiB, 40 * kMiB}) {
      pieces.emplace_back(Take(bytes), bytes);
    }
    for (const auto& [piece, bytes] : pieces) {
      pool_->Give(piece, bytes);
    }
  };
  round();
  const FakeGpuCounters before = Counters();
  for (int i = 0; i < 10; ++i) {
    round();
  }
  EXPECT_EQ(Counters().allocations, before.allocations);
  EXPECT_EQ(Counters().frees, 0);
  EXPECT_EQ(Counters().events, before.events);
}

TEST_F(CachingPoolTest, SmallPiecesShareAReservation) {
  std::byte* first = Take(1000);
  std::byte* second = Take(2 * kMiB);
  EXPECT_EQ(Counters().allocations, 1);
  EXPECT_EQ(pool_->reserved_bytes(), CachingPool::kSharedBytes);
  pool_->Give(first, 1000);
  std::byte* third = Take(900);
  EXPECT_EQ(third, first);
  pool_->Give(third, 900);
  pool_->Give(second, 2 * kMiB);
}

TEST_F(CachingPoolTest, ALargePieceIsUsedAgainForOneNearlyAsLarge) {
  std::byte* first = Take(100 * kMiB);
  pool_->Give(first, 100 * kMiB);
  std::byte* second = Take(85 * kMiB);
  EXPECT_EQ(second, first);
  std::byte* third = Take(85 * kMiB);
  pool_->Give(second, 85 * kMiB);
  pool_->Give(third, 85 * kMiB);
  std::byte* fourth = Take(50 * kMiB);  // would waste half
  EXPECT_NE(fourth, first);
  EXPECT_NE(fourth, third);
  EXPECT_EQ(Counters().allocations, 3);
  pool_->Give(fourth, 50 * kMiB);
}

TEST_F(CachingPoolTest, WhatIsKeptIsGivenBackWhereTheBudgetIsShort) {
  std::byte* first = Take(600 * kMiB);
  pool_->Give(first, 600 * kMiB);
  std::byte* second = Take(900 * kMiB);
  EXPECT_EQ(Counters().frees, 1);
  EXPECT_EQ(pool_->reserved_bytes(), 900 * kMiB);
  // A shared reservation takes what is left.
  std::byte* third = Take(10 * kMiB);
  EXPECT_EQ(pool_->reserved_bytes(), 964 * kMiB);
  std::byte* fourth = Take(15 * kMiB);
  std::byte* fifth = Take(60 * kMiB);
  EXPECT_EQ(pool_->reserved_bytes(), kGiB);
  const absl::StatusOr<std::byte*> more = pool_->Take(39 * kMiB);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(more.status().message(),
            "cuda:0 memory: 40894464 B asked for, 1032847360 of 1073741824 B in use and 40894464 B "
            "free in pieces that are too small; raise the budget");
  pool_->Give(second, 900 * kMiB);
  pool_->Give(third, 10 * kMiB);
  pool_->Give(fourth, 15 * kMiB);
  pool_->Give(fifth, 60 * kMiB);
}

TEST_F(CachingPoolTest, WhatIsKeptIsGivenBackWhereTheDriverIsShort) {
  Make(8 * kGiB, {.memory_bytes = kGiB});
  std::byte* first = Take(600 * kMiB);
  pool_->Give(first, 600 * kMiB);
  std::byte* second = Take(900 * kMiB);
  const absl::StatusOr<std::byte*> more = pool_->Take(200 * kMiB);
  EXPECT_EQ(more.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(more.status().message(),
            "cuda:0 memory: 209715200 B asked for, 943718400 of 8589934592 B in use, but the GPU "
            "has 130023424 of 1073741824 B free: others use it too; end them, or raise the budget");
  // Small pieces can use smaller reservations.
  std::byte* third = Take(15 * kMiB);
  EXPECT_EQ(pool_->reserved_bytes(), 964 * kMiB);
  std::byte* fourth = Take(15 * kMiB);
  std::byte* fifth = Take(15 * kMiB);
  std::byte* sixth = Take(15 * kMiB);
  std::byte* seventh = Take(15 * kMiB);
  EXPECT_EQ(Counters().allocations, 4);
  for (std::byte* piece : {third, fourth, fifth, sixth, seventh}) {
    pool_->Give(piece, 15 * kMiB);
  }
  pool_->Give(second, 900 * kMiB);
}

TEST_F(CachingPoolTest, MemoryOfTheHostIsPinned) {
  Make(0, {}, CachingPool::Kind::kPinnedHost);
  std::byte* piece = Take(20 * kMiB);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, piece + 20 * kMiB - 1), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  pool_->Give(piece, 20 * kMiB);
  std::byte* again = Take(19 * kMiB);
  EXPECT_EQ(again, piece);
  EXPECT_EQ(Counters().host_allocations, 1);
  FailCall("cudaHostAlloc", 1, cudaErrorMemoryAllocation);
  const absl::StatusOr<std::byte*> small = pool_->Take(1000);
  ASSERT_TRUE(small.ok());  // with a smaller reservation
  EXPECT_EQ(Counters().host_bytes, 22 * kMiB);
  pool_->Give(*small, 1000);
  pool_->Give(again, 19 * kMiB);
}

TEST_F(CachingPoolTest, OtherErrorsOfTheDriverAreTold) {
  FailCall("cudaMalloc", 1, cudaErrorDevicesUnavailable);
  const absl::StatusOr<std::byte*> piece = pool_->Take(30 * kMiB);
  EXPECT_EQ(piece.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(piece.status().message()), HasSubstr("cuda:0: reserving 31457280 B"));
  EXPECT_EQ(pool_->allocated_bytes(), 0);
}

// Random pieces: none overlaps another, counts are exact, and everything that the budget allows is
// available again after all pieces are freed.
TEST_F(CachingPoolTest, RandomPieces) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Make(512 * kMiB, {.seed = seed});
    Random random(seed);
    std::map<std::byte*, int64_t> pieces;
    int64_t used = 0;
    int64_t failures = 0;
    for (int i = 0; i < 1000; ++i) {
      if (!pieces.empty() && random.Below(2) == 0) {
        const auto it =
            std::next(pieces.begin(), static_cast<int64_t>(random.Below(pieces.size())));
        pool_->Give(it->first, it->second);
        used -= it->second;
        pieces.erase(it);
        continue;
      }
      const int64_t bytes = random.Between(1, int64_t{1} << random.Between(0, 26));
      const absl::StatusOr<std::byte*> piece = pool_->Take(bytes);
      if (!piece.ok()) {
        ASSERT_EQ(piece.status().code(), absl::StatusCode::kResourceExhausted);
        ++failures;
        continue;
      }
      ASSERT_EQ(reinterpret_cast<uintptr_t>(*piece) % CachingPool::kAlignment, 0u);
      const auto after = pieces.lower_bound(*piece);
      ASSERT_TRUE(after == pieces.end() || *piece + bytes <= after->first);
      ASSERT_TRUE(after == pieces.begin() ||
                  std::prev(after)->first + std::prev(after)->second <= *piece);
      pieces.emplace(*piece, bytes);
      used += bytes;
      ASSERT_EQ(pool_->allocated_bytes(), used);
      ASSERT_LE(pool_->reserved_bytes(), 512 * kMiB);
    }
    EXPECT_LT(failures, 100);
    for (const auto& [piece, bytes] : pieces) {
      pool_->Give(piece, bytes);
    }
    std::byte* all = Take(512 * kMiB);
    pool_->Give(all, 512 * kMiB);
  }
}

}  // namespace
}  // namespace shoal::gpu

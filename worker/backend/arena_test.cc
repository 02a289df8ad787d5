#include "worker/backend/arena.h"

#include <algorithm>
#include <span>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/backend/cpu/cpu_device.h"

namespace shoal::worker {
namespace {

using testing::Each;
using testing::HasSubstr;

class ArenaTest : public testing::Test {
 protected:
  std::span<std::byte> Take(Arena& arena, int64_t bytes, int64_t place) {
    const absl::StatusOr<std::byte*> piece = arena.Take(bytes, place);
    EXPECT_TRUE(piece.ok()) << piece.status().message();
    return {*piece, static_cast<size_t>(bytes)};
  }

  const std::unique_ptr<Device> device_ = MakeCpuDevice(10000);
  const std::unique_ptr<Stream> stream_ = device_->NewStream();
};

TEST_F(ArenaTest, CountsWhatIsInUseExactly) {
  Arena arena(*device_, "activations");
  ASSERT_TRUE(arena.Reserve(1000).ok());
  EXPECT_EQ(device_->allocated_bytes(), 1024);
  const auto a = Take(arena, 100, 64);
  const auto b = Take(arena, 300, 192);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % kBufferAlignment, 0u);
  EXPECT_EQ(arena.used(), 400);
  arena.Give(a.data());
  EXPECT_EQ(arena.used(), 300);
  EXPECT_EQ(arena.peak(), 400);
  arena.Give(b.data());
  ASSERT_TRUE(arena.Reserve(10).ok());
  EXPECT_EQ(arena.peak(), 0);
}

TEST_F(ArenaTest, GrowsBetweenUsesAndOnlyForMore) {
  Arena arena(*device_, "activations");
  ASSERT_TRUE(arena.Reserve(1000).ok());
  ASSERT_TRUE(arena.Reserve(500).ok());
  ASSERT_TRUE(arena.Reserve(1024).ok());
  EXPECT_EQ(arena.reservations(), 1);
  ASSERT_TRUE(arena.Reserve(6000).ok());
  EXPECT_EQ(arena.reservations(), 2);
  EXPECT_EQ(device_->allocated_bytes(), arena.capacity());
  const absl::Status status = arena.Reserve(20000);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("activations: cpu memory: 20032 B asked"));
  EXPECT_EQ(arena.capacity(), 0);
  EXPECT_TRUE(arena.Reserve(100).ok());
}

TEST_F(ArenaTest, SaysWhatDoesNotFit) {
  Arena arena(*device_, "stage 1's activations");
  ASSERT_TRUE(arena.Reserve(640).ok());
  const auto a = Take(arena, 256, 0);
  Take(arena, 128, 256);
  arena.Give(a.data());
  EXPECT_EQ(arena.Take(300, 0).status().message(),
            "stage 1's activations: 300 B asked for at 0, which are not free: 128 of 640 B in use, "
            "the largest hole has 256 B");
  arena.GiveAll();
  EXPECT_EQ(arena.used(), 0);
  EXPECT_TRUE(arena.Take(640, 0).ok());
}

TEST_F(ArenaTest, WhatIsGivenBackIsPoisoned) {
  Arena arena(*device_, "activations", stream_.get());
  ASSERT_TRUE(arena.Reserve(256).ok());
  const auto a = Take(arena, 100, 0);
  const auto b = Take(arena, 100, 128);
  EXPECT_THAT(a, Each(Arena::kPoison));
  std::ranges::fill(a, std::byte{1});
  std::ranges::fill(b, std::byte{2});
  arena.Give(a.data());
  EXPECT_THAT(a, Each(Arena::kPoison));
  EXPECT_THAT(b, Each(std::byte{2}));
  arena.GiveAll();
  EXPECT_THAT(b, Each(Arena::kPoison));
}

}  // namespace
}  // namespace shoal::worker

#include "core/base/memory/range_allocator.h"

#include <vector>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

TEST(RangeAllocator, TakesTheSmallestHoleThatIsLargeEnough) {
  RangeAllocator ranges(100);
  const int64_t a = *ranges.Take(10);
  const int64_t b = *ranges.Take(5);
  const int64_t c = *ranges.Take(20);
  const int64_t d = *ranges.Take(5);
  const int64_t e = *ranges.Take(12);
  const int64_t f = *ranges.Take(8);
  EXPECT_EQ(a, 0);
  EXPECT_EQ(f, 52);
  ranges.Give(a);
  ranges.Give(c);
  ranges.Give(e);
  EXPECT_EQ(*ranges.Take(11), e);
  EXPECT_EQ(*ranges.Take(9), a);
  EXPECT_EQ(*ranges.Take(16), c);
  EXPECT_EQ(ranges.used(), 5 + 5 + 8 + 11 + 9 + 16);
  EXPECT_EQ(ranges.peak(), 60);
  EXPECT_EQ(ranges.Give(b), 5);
  EXPECT_EQ(ranges.Give(d), 5);
  EXPECT_EQ(ranges.largest_hole(), 40);
  EXPECT_FALSE(ranges.Take(41).has_value());
  EXPECT_EQ(*ranges.Take(40), 60);
}

TEST(RangeAllocator, HolesThatTouchBecomeOne) {
  RangeAllocator ranges(30);
  const int64_t a = *ranges.Take(10);
  const int64_t b = *ranges.Take(10);
  const int64_t c = *ranges.Take(10);
  EXPECT_EQ(ranges.largest_hole(), 0);
  ranges.Give(a);
  ranges.Give(c);
  EXPECT_EQ(ranges.largest_hole(), 10);
  ranges.Give(b);
  EXPECT_EQ(ranges.largest_hole(), 30);
  EXPECT_EQ(*ranges.Take(30), 0);
}

TEST(RangeAllocator, AlignsPlacesAndCountsWhatWasAskedFor) {
  RangeAllocator ranges(256, 64);
  EXPECT_EQ(*ranges.Take(1), 0);
  EXPECT_EQ(*ranges.Take(65), 64);
  EXPECT_EQ(*ranges.Take(64), 192);
  EXPECT_FALSE(ranges.Take(1).has_value());
  EXPECT_EQ(ranges.used(), 130);
  EXPECT_EQ(ranges.highest_end(), 256);
}

TEST(RangeAllocator, TakesAPlaceThatIsGiven) {
  RangeAllocator ranges(256, 64);
  EXPECT_TRUE(ranges.TakeAt(64, 100));
  EXPECT_FALSE(ranges.TakeAt(0, 65));
  EXPECT_FALSE(ranges.TakeAt(128, 1));
  EXPECT_FALSE(ranges.TakeAt(192, 65));
  EXPECT_TRUE(ranges.TakeAt(0, 64));
  EXPECT_TRUE(ranges.TakeAt(192, 64));
  EXPECT_EQ(ranges.largest_hole(), 0);
  EXPECT_EQ(ranges.used(), 228);
  EXPECT_EQ(ranges.Give(64), 100);
  EXPECT_EQ(ranges.largest_hole(), 128);
  EXPECT_EQ(*ranges.Take(128), 64);
  EXPECT_EQ(ranges.peak(), 256);
}

// A walk over an endless arena shows the capacity that suffices, and gives the same places as a
// walk over exactly that.
TEST(RangeAllocator, AWalkFitsIntoItsHighestEndAtTheSameOffsets) {
  Random random(11);
  for (int round = 0; round < 200; ++round) {
    const int64_t alignment = round % 2 == 0 ? 1 : 64;
    RangeAllocator endless(RangeAllocator::kEndless, alignment);
    struct Call {
      bool take;
      int64_t size_or_begin;
      int64_t begin;
    };
    std::vector<Call> calls;
    std::vector<std::pair<int64_t, int64_t>> held;  // begin, size
    int64_t used = 0;
    int64_t peak = 0;
    for (int i = 0; i < 200; ++i) {
      if (held.empty() || random.Below(5) < 3) {
        const int64_t size = random.Between(1, 1000);
        const int64_t begin = *endless.Take(size);
        EXPECT_EQ(begin % alignment, 0);
        for (const auto& [other, length] : held) {
          EXPECT_TRUE(begin + size <= other || other + length <= begin);
        }
        held.emplace_back(begin, size);
        calls.push_back({true, size, begin});
        peak = std::max(peak, used += size);
      } else {
        std::swap(held[random.Below(held.size())], held.back());
        calls.push_back({false, held.back().first, 0});
        EXPECT_EQ(endless.Give(held.back().first), held.back().second);
        used -= held.back().second;
        held.pop_back();
      }
    }
    EXPECT_EQ(endless.used(), used);
    EXPECT_EQ(endless.peak(), peak);
    RangeAllocator tight(endless.highest_end(), alignment);
    RangeAllocator short_of(endless.highest_end() - 1, alignment);
    bool fitted = true;
    for (const Call& call : calls) {
      if (!call.take) {
        tight.Give(call.size_or_begin);
        if (fitted) {
          short_of.Give(call.size_or_begin);
        }
        continue;
      }
      EXPECT_EQ(tight.Take(call.size_or_begin).value_or(-1), call.begin);
      if (fitted) {
        const std::optional<int64_t> begin = short_of.Take(call.size_or_begin);
        fitted = begin.has_value();
      }
    }
    EXPECT_FALSE(fitted);
    for (const auto& [begin, size] : held) {
      tight.Give(begin);
    }
    EXPECT_EQ(tight.used(), 0);
    EXPECT_EQ(tight.largest_hole(), tight.capacity());
  }
}

}  // namespace
}  // namespace shoal

#include "core/model/unit_shards.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

TEST(UnitShards, CoverTheUnitOnceAndAreEqualWithPadding) {
  for (const int64_t count : {0, 1, 64, 100, 128, 1000, 4096, 12345}) {
    for (int ranks = 1; ranks <= 9; ++ranks) {
      const int64_t shard = ShardElements(count, ranks);
      EXPECT_EQ(shard % kPartitionAlignment, 0);
      EXPECT_GE(shard * ranks, count);
      EXPECT_LT(shard * ranks, count + ranks * (kPartitionAlignment + 1));
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const ElementRange range = ShardOf(count, rank, ranks);
        EXPECT_EQ(range.first, next);
        EXPECT_LE(range.count, shard);
        EXPECT_TRUE(range.count == 0 || range.first == rank * shard);
        next = range.end();
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(UnitShards, WidenToWholePartitions) {
  const std::vector<PartitionSpec> partitions = {{.id = 0, .unit = 0, .offset = 0, .count = 640},
                                                 {.id = 1, .unit = 1, .offset = 0, .count = 128},
                                                 {.id = 2, .unit = 1, .offset = 128, .count = 64},
                                                 {.id = 3, .unit = 1, .offset = 192, .count = 128}};
  const auto whole = [&](int64_t first, int64_t count) {
    return WholePartitions(partitions, 1, {first, count});
  };
  EXPECT_EQ(whole(0, 320), (ElementRange{0, 320}));
  EXPECT_EQ(whole(0, 1), (ElementRange{0, 128}));
  EXPECT_EQ(whole(127, 2), (ElementRange{0, 192}));
  EXPECT_EQ(whole(128, 64), (ElementRange{128, 64}));
  EXPECT_EQ(whole(300, 20), (ElementRange{192, 128}));
  EXPECT_EQ(whole(320, 0).count, 0);
}

}  // namespace
}  // namespace shoal::plan

#include "core/model/partition.h"

#include <numeric>

#include "core/base/bytes.h"
#include "core/model/shard_map.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

TEST(BuildPartitions, CoverEachUnitOnceWithinTheLimit) {
  const auto units = BuildUnits(*NamedShape("6m"));
  for (const int64_t bytes : {int64_t{1000}, 64 * kKiB, 4 * kMiB}) {
    const auto partitions = BuildPartitions(units, bytes);
    std::vector<int64_t> covered(units.size(), 0);
    for (size_t i = 0; i < partitions.size(); ++i) {
      const PartitionSpec& partition = partitions[i];
      EXPECT_EQ(partition.id, static_cast<int>(i));
      EXPECT_EQ(partition.offset, covered[static_cast<size_t>(partition.unit)]);
      EXPECT_EQ(partition.offset % kPartitionAlignment, 0);
      EXPECT_GT(partition.count, 0);
      EXPECT_LE(partition.count * 4, std::max(bytes, 4 * kPartitionAlignment));
      covered[static_cast<size_t>(partition.unit)] += partition.count;
    }
    for (const UnitSpec& unit : units) {
      EXPECT_EQ(covered[static_cast<size_t>(unit.index)], unit.count);
    }
  }
}

TEST(PlaceShards, IsEvenAndDeterministic) {
  const auto partitions = BuildPartitions(BuildUnits(*NamedShape("6m")), 256 * kKiB);
  for (const int servers : {1, 2, 3, 7}) {
    const ShardMap map = PlaceShards(partitions, servers, 1);
    EXPECT_EQ(map, PlaceShards(partitions, servers, 1));
    std::vector<int64_t> load(static_cast<size_t>(servers), 0);
    for (const PartitionSpec& partition : partitions) {
      load[static_cast<size_t>(map.primary(partition.id))] += partition.count;
    }
    const auto [low, high] = std::minmax_element(load.begin(), load.end());
    EXPECT_LE(*high - *low, 64 * kKiB) << servers << " servers differ by at most one partition";
  }
}

TEST(WithReaders, AreOnTheClientsHostWhereAHolderIsAndSpreadOverHolders) {
  const ShardMap map = {.generation = 7, .servers = {{0, 1}, {1, 2}, {2, 0}, {0, 2}}};
  const std::vector<std::string> hosts = {"a", "b", "c"};
  const ShardMap at_b = WithReaders(map, hosts, "b", 0);
  EXPECT_EQ(at_b.servers, map.servers);
  EXPECT_EQ(at_b.generation, 7);
  EXPECT_EQ(at_b.reader(0), 1);
  EXPECT_EQ(at_b.reader(1), 1);
  for (const auto& [client, readers] :
       {std::pair(4, std::vector{0, 2, 2, 2}), std::pair(5, std::vector{1, 1, 0, 0})}) {
    EXPECT_EQ(WithReaders(map, hosts, "d", client).readers, readers) << client;
  }
  EXPECT_EQ(WithReaders(map, std::vector<std::string>(3, "a"), "a", 5).readers,
            WithReaders(map, hosts, "d", 5).readers)
      << "all are on its host";
  EXPECT_EQ(map.reader(2), 2) << "without any: the primary";
}

}  // namespace
}  // namespace shoal::plan

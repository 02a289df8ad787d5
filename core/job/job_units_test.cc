#include "core/job/job_units.h"

#include <string>
#include <vector>

#include "core/model/partition.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> FrozenOf(const std::vector<ParameterGroup>& groups, bool tied = false) {
  ModelSpec spec = *NamedShape("tiny");
  spec.layers = 2;
  spec.tied_embeddings = tied;
  std::vector<std::string> frozen;
  for (const UnitSpec& unit : JobUnits(spec, {.groups = groups})) {
    if (unit.frozen) {
      frozen.push_back(unit.name);
    }
  }
  return frozen;
}

TEST(JobUnits, FreezesAUnitOfWhichNoTensorTrains) {
  EXPECT_THAT(FrozenOf({}), IsEmpty());
  EXPECT_THAT(FrozenOf({{.match = "model.layers.1.*", .freeze = true}}), ElementsAre("block.1"));
  EXPECT_THAT(FrozenOf({{.match = "*", .freeze = true}}),
              ElementsAre("embedding", "block.0", "block.1", "head"));
  EXPECT_THAT(FrozenOf({{.match = "*norm*", .freeze = true}}), IsEmpty());
  EXPECT_THAT(FrozenOf({{.match = "*norm*", .freeze = true}}, /*tied=*/true), ElementsAre("head"));
}

TEST(JobUnits, TakesTheFirstGroupThatFitsATensor) {
  EXPECT_THAT(FrozenOf({{.match = "*.0.mlp.up_proj.*", .learning_rate_scale = 0.5},
                        {.match = "model.layers.*", .freeze = true}}),
              ElementsAre("block.1"));
  EXPECT_THAT(FrozenOf({{.match = "model.layers.*", .freeze = true},
                        {.match = "*.0.mlp.up_proj.*", .learning_rate_scale = 0.5}}),
              ElementsAre("block.0", "block.1"));
}

TEST(JobUnits, MakesPartitionsFrozenWithTheirUnit) {
  const auto units =
      JobUnits(*NamedShape("tiny"), {.groups = {{.match = "model.layers.0.*", .freeze = true}}});
  for (const PartitionSpec& partition : BuildPartitions(units, 4096)) {
    EXPECT_EQ(partition.frozen, partition.unit == 1) << partition.id;
    EXPECT_EQ(partition.trained(), partition.frozen ? 0 : partition.count) << partition.id;
  }
}

}  // namespace
}  // namespace shoal::plan

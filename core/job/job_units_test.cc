#include "core/job/job_units.h"

#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
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

TEST(JobUnits, HaveTheMomentsOfTheJobsOptimizer) {
  const auto train = [](const std::string& section) {
    return ParseJob("model: m\ndata: {train: t}\ntrain: {" + section + "}\n", "job.yaml");
  };
  for (const auto& [optimizer, moments] :
       {std::pair{"adamw", Moments{.arrays = 2}}, std::pair{"adamw8", Moments{.packed = true}},
        std::pair{"lion", Moments{.arrays = 1}}}) {
    const auto job = train(std::string("optimizer: ") + optimizer);
    ASSERT_TRUE(job.ok()) << job.status();
    const auto units = JobUnits(*NamedShape("tiny"), job->train);
    EXPECT_EQ(BuildPartitions(units, 4096)[0].moments, moments) << optimizer;
  }
  EXPECT_TRUE(train("optimizer: adamw8, beta2: 0.999").ok());
  EXPECT_EQ(Message(ParseJob("model: m\ndata: {train: t}\ntrain: {optimizer: lion}\n"
                             "service: {memory: cuda}\n",
                             "job.yaml")
                        .status()),
            "job.yaml:3: train.optimizer adamw8 and lion are of state in memory of the host, and "
            "service.memory is cuda");
}

}  // namespace
}  // namespace shoal::plan

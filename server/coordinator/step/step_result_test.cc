#include "server/coordinator/step/step_result.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Each pushed once.
void AddPartition(proto::PrepareReply& reply, int id, double sum_of_squares) {
  reply.add_partitions(id);
  reply.add_sums_of_squares(sum_of_squares);
  reply.add_non_finite(1);
  reply.add_pushes(1);
}

PushPlan PlanOf(int partitions) {
  PushPlan plan{.unit_elements = {partitions}, .per_pack = {{1}}};
  for (int id = 0; id < partitions; ++id) {
    plan.partitions.push_back({.id = id, .unit = 0, .offset = id, .count = 1});
  }
  return plan;
}

// Of a loss of 4 in targets that weigh 8, after one pack.
absl::StatusOr<StepTotals> TotalOf(const PushPlan& plan, const plan::ShardMap& map,
                                   const std::vector<proto::PrepareReply>& prepared) {
  return Total(4.0, prepared, ExpectedPushes(plan, {{.packs = 1}}, /*ranks=*/1), map, 8);
}

TEST(StepResultTest, SumsInPartitionOrder) {
  const plan::ShardMap map = {.generation = 1, .servers = {{1}, {0}, {1}}};
  proto::PrepareReply first;
  AddPartition(first, 1, 1e16);
  proto::PrepareReply second;
  AddPartition(second, 2, 1.0);  // not ascending: the order of arrival must not matter
  AddPartition(second, 0, 1.0);
  const auto totals = TotalOf(PlanOf(3), map, {first, second});
  ASSERT_TRUE(totals.ok()) << totals.status();
  EXPECT_EQ(totals->grad_norm, std::sqrt((1.0 + 1e16) + 1.0));
  EXPECT_EQ(totals->loss, 0.5);
  EXPECT_EQ(totals->non_finite, 3);
}

TEST(StepResultTest, EachPartitionIsReportedOnceByItsPrimary) {
  PushPlan plan = PlanOf(2);
  const plan::ShardMap map = {.generation = 1, .servers = {{0}, {1}}};
  const auto why = [&](const std::vector<proto::PrepareReply>& prepared) {
    const absl::Status status = TotalOf(plan, map, prepared).status();
    EXPECT_TRUE(status.ok() || absl::IsInternal(status));
    return std::string(Message(status));
  };
  proto::PrepareReply first;
  AddPartition(first, 0, 1);
  proto::PrepareReply second;
  EXPECT_EQ(why({first, second}), "server 1 did not report its partition 1");
  plan.partitions[1].frozen = true;
  EXPECT_EQ(TotalOf(plan, map, {first, second})->grad_norm, 1);
  AddPartition(second, 1, 1);
  EXPECT_EQ(why({first, second}), "server 1 reports partition 1, which is not its own");
  plan.partitions[1].frozen = false;
  EXPECT_EQ(why({first, second}), "");
  AddPartition(second, 1, 1);
  EXPECT_EQ(why({first, second}), "server 1 reports partition 1, which is not its own");
  for (const int other : {0, 99, -1}) {
    proto::PrepareReply reply;
    AddPartition(reply, other, 1);
    EXPECT_EQ(why({first, reply}),
              fmt::format("server 1 reports partition {}, which is not its own", other));
  }
  EXPECT_EQ(why({second, first}), "server 0 reports partition 1, which is not its own");
}

TEST(StepResultTest, AnAnswerSaysAllOfEachPartition) {
  const plan::ShardMap map = {.generation = 1, .servers = {{0}}};
  proto::PrepareReply whole;
  AddPartition(whole, 0, 1);
  ASSERT_TRUE(TotalOf(PlanOf(1), map, {whole}).ok());
  for (const auto& change_it : std::vector<std::function<void(proto::PrepareReply&)>>{
           [](proto::PrepareReply& reply) { reply.add_partitions(0); },
           [](proto::PrepareReply& reply) { reply.clear_sums_of_squares(); },
           [](proto::PrepareReply& reply) { reply.clear_non_finite(); },
           [](proto::PrepareReply& reply) { reply.add_pushes(1); }}) {
    proto::PrepareReply reply = whole;
    change_it(reply);
    EXPECT_TRUE(absl::IsInternal(TotalOf(PlanOf(1), map, {reply}).status()));
  }
}

TEST(StepResultTest, PushesThatServersCountedAreCompared) {
  const plan::ShardMap map = {.generation = 1, .servers = {{0}, {1}}};
  proto::PrepareReply first;
  AddPartition(first, 0, 1);
  proto::PrepareReply second;
  AddPartition(second, 1, 1);
  second.set_pushes(0, 3);
  const absl::Status other = TotalOf(PlanOf(2), map, {first, second}).status();
  EXPECT_TRUE(absl::IsAborted(other));
  EXPECT_EQ(Message(other), "server 1 took 3 pushes of partition 1, and the step's packs make 1");
}

TEST(StepResultTest, NamesWhatIsNotFinite) {
  EXPECT_THAT(NonFinite({.loss = kNan}), HasSubstr("loss is nan"));
  EXPECT_THAT(NonFinite({.grad_norm = kInfinity}), HasSubstr("norm is inf"));
  EXPECT_THAT(NonFinite({.non_finite = 3}), HasSubstr("3 gradient elements"));
}

TEST(StepResultTest, ClipsOnlyLargeGradients) {
  EXPECT_EQ(ClipCoefficient(1.0, 0.5), 1.0);
  EXPECT_EQ(ClipCoefficient(1.0, 4.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(ClipCoefficient(0, 4.0), 1.0);
}

}  // namespace
}  // namespace shoal::server

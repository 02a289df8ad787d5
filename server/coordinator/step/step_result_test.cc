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

void AddPartition(proto::PrepareReply& reply, int id, double sum_of_squares,
                  int64_t non_finite = 0) {
  reply.add_partitions(id);
  reply.add_sums_of_squares(sum_of_squares);
  reply.add_non_finite(non_finite);
  reply.add_pushes(1);
}

TEST(StepResultTest, SumsInPartitionOrder) {
  const std::vector<plan::PartitionSpec> partitions(3);
  const plan::ShardMap map = {.generation = 1, .servers = {{1}, {0}, {1}}};
  proto::PrepareReply first;
  AddPartition(first, 1, 1e16);
  proto::PrepareReply second;
  AddPartition(second, 2, 1.0);  // not ascending: the order of arrival must not matter
  AddPartition(second, 0, 1.0);
  const auto totals = Total(4.0, {first, second}, partitions, map, 8);
  ASSERT_TRUE(totals.ok()) << totals.status();
  EXPECT_EQ(totals->grad_norm, std::sqrt((1.0 + 1e16) + 1.0));
  EXPECT_EQ(totals->loss, 0.5);
  EXPECT_EQ(NonFinite(*totals), "");
}

TEST(StepResultTest, EachPartitionIsReportedOnceByItsPrimary) {
  std::vector<plan::PartitionSpec> partitions(2);
  const plan::ShardMap map = {.generation = 1, .servers = {{0}, {1}}};
  proto::PrepareReply first;
  AddPartition(first, 0, 1);
  proto::PrepareReply second;
  EXPECT_THAT(std::string(Message(Total(0, {first, second}, partitions, map, 1).status())),
              HasSubstr("did not report its partition 1"));
  partitions[1].frozen = true;
  EXPECT_EQ(Total(0, {first, second}, partitions, map, 1)->grad_norm, 1);
  AddPartition(second, 1, 1);
  EXPECT_FALSE(Total(0, {first, second}, partitions, map, 1).ok());
  second.Clear();
  partitions[1].frozen = false;
  AddPartition(second, 0, 1);
  EXPECT_FALSE(Total(0, {first, second}, partitions, map, 1).ok());
  AddPartition(first, 99, 1);
  EXPECT_FALSE(Total(0, {first, second}, partitions, map, 1).ok());
  proto::PrepareReply negative;
  AddPartition(negative, -1, 1);
  EXPECT_FALSE(Total(0, {negative, second}, partitions, map, 1).ok());
}

TEST(StepResultTest, AnAnswerSaysAllOfEachPartition) {
  const plan::ShardMap map = {.generation = 1, .servers = {{0}}};
  proto::PrepareReply whole;
  AddPartition(whole, 0, 1);
  for (const auto& change_it : std::vector<std::function<void(proto::PrepareReply&)>>{
           [](proto::PrepareReply& reply) { reply.add_partitions(0); },
           [](proto::PrepareReply& reply) { reply.clear_sums_of_squares(); },
           [](proto::PrepareReply& reply) { reply.clear_non_finite(); },
           [](proto::PrepareReply& reply) { reply.add_pushes(1); }}) {
    proto::PrepareReply reply = whole;
    EXPECT_TRUE(Total(0, {reply}, {{}}, map, 1).ok());
    EXPECT_TRUE(CheckWhole(0, reply).ok());
    change_it(reply);
    EXPECT_TRUE(absl::IsInternal(CheckWhole(0, reply)));
    EXPECT_TRUE(absl::IsInternal(Total(0, {reply}, {{}}, map, 1).status()));
  }
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

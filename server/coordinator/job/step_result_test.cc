#include "server/coordinator/job/step_result.h"

#include <cmath>
#include <limits>

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const std::vector<Participant> kWorkers = {{.name = "worker 0", .incarnation = 10},
                                           {.name = "worker 1", .incarnation = 11}};

proto::FinishedReport Report(double loss, std::vector<int64_t> pushes) {
  proto::FinishedReport report;
  report.set_loss_sum(loss);
  for (const int64_t count : pushes) {
    report.add_pushes(count);
  }
  return report;
}

proto::PrepareReply Prepared(std::vector<std::pair<uint64_t, int64_t>> clients) {
  proto::PrepareReply reply;
  for (const auto& [incarnation, pushes] : clients) {
    auto* client = reply.add_clients();
    client->set_incarnation(incarnation);
    client->set_pushes(pushes);
    client->set_duplicates(3);  // duplicates do not count
  }
  return reply;
}

void AddPartition(proto::PrepareReply& reply, int id, double sum_of_squares,
                  int64_t non_finite = 0) {
  auto* gradient = reply.add_partitions();
  gradient->set_partition(id);
  gradient->set_sum_of_squares(sum_of_squares);
  gradient->set_non_finite(non_finite);
}

TEST(StepResultTest, PushesMustAgreePerServerAndWorker) {
  const std::vector<proto::FinishedReport> reports = {Report(0, {4, 2}), Report(0, {0, 7})};
  EXPECT_TRUE(
      CheckPushes(reports, {Prepared({{10, 4}}), Prepared({{11, 7}, {10, 2}})}, kWorkers).ok());
  const absl::Status lost =
      CheckPushes(reports, {Prepared({{10, 4}}), Prepared({{11, 6}, {10, 2}})}, kWorkers);
  EXPECT_EQ(Message(lost), "server 1 took 6 pushes of worker 1, which had 7 acknowledged");
  EXPECT_FALSE(CheckPushes(reports, {Prepared({}), Prepared({{11, 7}, {10, 2}})}, kWorkers).ok());
  EXPECT_FALSE(
      CheckPushes(reports, {Prepared({{10, 4}, {12, 1}}), Prepared({{11, 7}, {10, 2}})}, kWorkers)
          .ok());
  EXPECT_TRUE(
      CheckPushes(reports, {Prepared({{10, 4}, {12, 0}}), Prepared({{11, 7}, {10, 2}})}, kWorkers)
          .ok());
}

TEST(StepResultTest, ReportsMustAgreeWithTheirPlan) {
  GivenWork given;
  given.Add({.samples = {1}, .tokens = 10, .targets = 4});
  given.Add({.samples = {2}, .tokens = 5, .targets = 3});
  given.Add({});  // an empty one counts
  proto::FinishedReport report = Report(0, {1, 1});
  report.set_microbatches(3);
  report.set_tokens(15);
  report.set_target_tokens(7);
  EXPECT_TRUE(CheckReport(report, given, 2, kWorkers[0]).ok());
  EXPECT_FALSE(CheckReport(report, given, 3, kWorkers[0]).ok());
  report.set_target_tokens(6);
  EXPECT_EQ(Message(CheckReport(report, given, 2, kWorkers[0])),
            "worker 0 reports 6 target tokens, it was given 7");
  EXPECT_TRUE(CheckReport(Report(0, {0, 0}), {}, 2, kWorkers[1]).ok());
}

TEST(StepResultTest, SumsInPartitionAndWorkerOrder) {
  const plan::ShardMap map = {.generation = 1, .servers = {{1}, {0}, {1}}};
  proto::PrepareReply first;
  AddPartition(first, 1, 1e16);
  proto::PrepareReply second;
  AddPartition(second, 2, 1.0);  // not ascending: the order of arrival must not matter
  AddPartition(second, 0, 1.0);
  const auto totals = Total({Report(1.5, {}), Report(2.5, {})}, {first, second}, map, 8);
  ASSERT_TRUE(totals.ok()) << totals.status();
  EXPECT_EQ(totals->grad_norm, std::sqrt((1.0 + 1e16) + 1.0));
  EXPECT_EQ(totals->loss, 0.5);
  EXPECT_EQ(NonFinite(*totals), "");
}

TEST(StepResultTest, EachPartitionIsReportedOnceByItsPrimary) {
  const plan::ShardMap map = {.generation = 1, .servers = {{0}, {1}}};
  proto::PrepareReply first;
  AddPartition(first, 0, 1);
  proto::PrepareReply second;
  EXPECT_THAT(std::string(Message(Total({}, {first, second}, map, 1).status())),
              HasSubstr("did not report its partition 1"));
  AddPartition(second, 0, 1);
  EXPECT_FALSE(Total({}, {first, second}, map, 1).ok());
  AddPartition(first, 99, 1);
  EXPECT_FALSE(Total({}, {first, second}, map, 1).ok());
  proto::PrepareReply negative;
  AddPartition(negative, -1, 1);
  EXPECT_FALSE(Total({}, {negative, second}, map, 1).ok());
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

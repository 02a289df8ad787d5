#include "core/transport/bench/bench.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace shoal::transport {
namespace {

TEST(BenchTest, MeasuresEveryPointBesideItsLimit) {
  BenchOptions options;
  options.transports = {"shm", "tcp"};
  options.sizes = {64, 100000};
  options.clients = {1, 2};
  options.runs = 1;
  options.run_time = absl::Milliseconds(3);
  options.memory_bytes = 8 << 20;
  size_t told = 0;
  const auto report = RunTransportBench(options, [&](const BenchPoint&) { ++told; });
  ASSERT_TRUE(report.ok()) << Describe(report.status());
  ASSERT_EQ(report->points.size(), 16u);
  EXPECT_EQ(told, 16u);
  EXPECT_THAT(report->left_out, testing::IsEmpty());
  for (const BenchPoint& point : report->points) {
    EXPECT_GT(point.bytes_per_second, 0);
    EXPECT_GT(point.latency_seconds, 0);
    EXPECT_GT(point.ratio(), 0);
    EXPECT_EQ(point.limit, point.transport == "shm" ? "memcpy" : "socket");
  }
  EXPECT_THAT(FormatBenchHeader(), testing::HasSubstr("ratio"));
  EXPECT_EQ(std::ranges::count(FormatBenchRow(report->points[0]), '\n'), 1);
  const nlohmann::json json = nlohmann::json::parse(FormatBenchJson(report->points[0]));
  EXPECT_EQ(json["bytes"], 64);
  EXPECT_EQ(json["ratio"], report->points[0].ratio());
}

TEST(BenchTest, WithoutALimitThereIsNoRatio) {
  const BenchPoint point = {.transport = "verbs", .operation = "get", .bytes = 64, .clients = 1};
  EXPECT_FALSE(nlohmann::json::parse(FormatBenchJson(point)).contains("ratio"));
  EXPECT_EQ(FormatBenchRow(point).size(), FormatBenchHeader().size());
}

TEST(BenchTest, LeavesOutWhatDoesNotFitTogether) {
  BenchOptions options;
  options.transports = {"shm"};
  options.sizes = {64, 1 << 18};
  options.clients = {1, 2};
  options.pushes = false;
  options.runs = 1;
  options.run_time = absl::Milliseconds(1);
  options.memory_bytes = 1 << 20;
  const auto report = RunTransportBench(options);
  ASSERT_TRUE(report.ok()) << Describe(report.status());
  EXPECT_EQ(report->points.size(), 3u);
  EXPECT_THAT(report->left_out,
              testing::ElementsAre(testing::HasSubstr("256.0 KiB with 2 clients")));
}

TEST(BenchTest, RefusesWhatDoesNotFitIntoMemory) {
  BenchOptions options;
  options.memory_bytes = 1 << 20;
  EXPECT_TRUE(absl::IsInvalidArgument(RunTransportBench(options).status()));
  options = BenchOptions();
  options.transports = {"pigeon"};
  EXPECT_THAT(Message(RunTransportBench(options).status()), testing::HasSubstr("pigeon"));
}

}  // namespace
}  // namespace shoal::transport

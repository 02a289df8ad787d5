#include "transport/bench.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "common/status.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace shoal::transport {
namespace {

TEST(BenchTest, MeasuresEveryPointBesideItsLimit) {
  BenchOptions options;
  options.sizes = {64, 100000};
  options.clients = {1, 2};
  options.runs = 1;
  options.run_time = absl::Milliseconds(3);
  options.memory_bytes = 8 << 20;
  const auto points = RunTransportBench(options);
  ASSERT_TRUE(points.ok()) << Describe(points.status());
  ASSERT_EQ(points->size(), 16u);
  for (const BenchPoint& point : *points) {
    EXPECT_GT(point.bytes_per_second, 0);
    EXPECT_GT(point.latency_seconds, 0);
    EXPECT_GT(point.ratio(), 0);
    EXPECT_EQ(point.limit, point.transport == "shm" ? "memcpy" : "socket");
  }
  EXPECT_THAT(FormatBenchTable(*points), testing::HasSubstr("ratio"));
  const std::string json = FormatBenchJson(*points);
  EXPECT_EQ(std::ranges::count(json, '\n'), 16);
  EXPECT_EQ(nlohmann::json::parse(json.substr(0, json.find('\n')))["bytes"], 64);
}

TEST(BenchTest, RefusesWhatDoesNotFitIntoMemory) {
  BenchOptions options;
  options.memory_bytes = 1 << 20;
  EXPECT_TRUE(absl::IsInvalidArgument(RunTransportBench(options).status()));
  options = BenchOptions();
  options.transports = {"pigeon"};
  EXPECT_THAT(Message(RunTransportBench(options).status()), testing::HasSubstr("shm, tcp"));
}

}  // namespace
}  // namespace shoal::transport

#include "server/store/bench.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

// Not about speed: it runs, measures every kernel, and says what each is a fraction of.
TEST(StoreBench, RunsAndReports) {
  const auto report = RunStoreBench({.threads = 2, .elements = (1 << 15) + 1, .runs = 1});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->threads, 2);
  for (const StoreBenchPoint& point : report->points) {
    EXPECT_GT(point.bytes_per_second, 0) << point.kernel;
    EXPECT_GT(point.ratio(), 0) << point.kernel;
    EXPECT_THAT(FormatStoreBenchTable(*report), testing::HasSubstr(point.kernel));
    EXPECT_THAT(FormatStoreBenchJson(*report), testing::HasSubstr(point.kernel));
  }
  EXPECT_FALSE(RunStoreBench({.elements = 1}).ok());
}

}  // namespace
}  // namespace shoal::server

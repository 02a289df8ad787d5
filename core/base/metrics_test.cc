#include "core/base/metrics.h"

#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

TEST(Metrics, CountsAndServes) {
  Metrics metrics;
  metrics.counter("shoal_test_total", "help", {{"op", "get"}}).Increment(2);
  metrics.counter("shoal_test_total", "help", {{"op", "get"}}).Increment();
  metrics.latency("shoal_test_seconds", "help").Observe(0.5);
  EXPECT_THAT(metrics.Text(), HasSubstr("shoal_test_total{op=\"get\"} 3"));
  const auto port = metrics.Serve(0);
  ASSERT_TRUE(port.ok());
  EXPECT_GT(*port, 0);
  Metrics second;
  // A port in use is an error, not an exception.
  EXPECT_EQ(second.Serve(*port).status().message(),
            fmt::format("cannot serve metrics on port {}: Address already in use; choose another "
                        "with --metrics-port",
                        *port));
  EXPECT_FALSE(second.Serve(65536).ok());
  EXPECT_THAT(std::string(second.Serve(0, "nowhere").status().message()), HasSubstr("'nowhere'"));
}

}  // namespace
}  // namespace shoal

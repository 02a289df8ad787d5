#include "core/transport/bench/bench_chart.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using ::testing::HasSubstr;

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

BenchPoint Point(const std::string& transport, const std::string& operation, int64_t bytes,
                 int clients) {
  return {.transport = transport,
          .operation = operation,
          .bytes = bytes,
          .clients = clients,
          .bytes_per_second = 4e9,
          .latency_seconds = 3e-5,
          .limit = "socket",
          .limit_bytes_per_second = 3e9,
          .limit_latency_seconds = 4e-5};
}

TEST(BenchChart, HasALineForEachTransportAndLimitInEachPanel) {
  BenchReport report;
  for (const char* operation : {"get", "push"}) {
    for (const int clients : {1, 4}) {
      report.points.push_back(Point("tcp", operation, 65536, clients));
      report.points.push_back(Point("tcp", operation, 1 << 20, clients));
    }
  }
  const chart::Chart chart = ChartOf(report);
  EXPECT_THAT(chart.title, HasSubstr("1 client"));
  EXPECT_THAT(chart.script, HasSubstr("'get: bandwidth'"));
  EXPECT_THAT(chart.script, HasSubstr("'push: latency, one at a time'"));
  EXPECT_THAT(chart.script, HasSubstr("'64 KiB' 0, '1 MiB' 1"));
  // Two lines of two points in each of four panels, and two entries in the legend: what more
  // clients reach is left out.
  EXPECT_EQ(Count(chart.script, "\nEND\n"), 8u);
  EXPECT_EQ(Count(chart.script, "\n0 "), 8u);
  EXPECT_EQ(Count(chart.script, "\n1 "), 8u);
  EXPECT_EQ(Count(chart.script, "title 'tcp'"), 1u);
  EXPECT_EQ(Count(chart.script, "title 'socket, the limit of tcp'"), 1u);
}

TEST(BenchChart, WhatHasNoLimitHasOneLine) {
  BenchReport report;
  report.points.push_back(Point("verbs", "get", 64, 1));
  report.points[0].limit.clear();
  EXPECT_EQ(Count(ChartOf(report).script, "\nEND\n"), 2u);
}

}  // namespace
}  // namespace shoal::transport

#include "core/transport/bench/drawing.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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

TEST(BenchDrawing, HasALineForEachTransportAndLimitInEachPanel) {
  BenchReport report;
  for (const char* operation : {"get", "push"}) {
    for (const int clients : {1, 4}) {
      report.points.push_back(Point("tcp", operation, 65536, clients));
      report.points.push_back(Point("tcp", operation, 1 << 20, clients));
    }
  }
  const std::string svg = DrawBench(report);
  EXPECT_THAT(svg, HasSubstr("get: bandwidth"));
  EXPECT_THAT(svg, HasSubstr("push: latency"));
  EXPECT_THAT(svg, HasSubstr(">64 KiB<"));
  EXPECT_THAT(svg, HasSubstr(">socket, the limit of tcp<"));
  EXPECT_THAT(svg, HasSubstr("1 client<"));
  // Two lines of two places in each of four panels, and two entries in the legend: what more
  // clients reach is left out.
  EXPECT_EQ(Count(svg, "<polyline"), 8u);
  EXPECT_EQ(Count(svg, "<circle"), 8 * 2 + 2u);
}

TEST(BenchDrawing, WhatHasNoLimitHasOneLine) {
  BenchReport report;
  report.points.push_back(Point("verbs", "get", 64, 1));
  report.points[0].limit.clear();
  EXPECT_EQ(Count(DrawBench(report), "<polyline"), 2u);
}

TEST(ComparisonDrawing, DrawsOursOnceBesideAllPeers) {
  ComparisonReport report;
  for (const char* peer : {"ucx", "openmpi"}) {
    report.points.push_back({.transport = "tcp",
                             .operation = "get",
                             .bytes = 1536,
                             .ours = {4e9, 3e-5},
                             .peer = peer,
                             .theirs = {3e9, 4e-5}});
  }
  const std::string svg = DrawComparison(report);
  EXPECT_EQ(Count(svg, ">Shoal over tcp<"), 1u);
  EXPECT_THAT(svg, HasSubstr(">ucx over tcp<"));
  EXPECT_THAT(svg, HasSubstr(">openmpi over tcp<"));
  EXPECT_THAT(svg, HasSubstr(">1.5 KiB<"));
  EXPECT_EQ(Count(svg, "<polyline"), 6u);
  EXPECT_THAT(svg, Not(HasSubstr("push")));
}

}  // namespace
}  // namespace shoal::transport

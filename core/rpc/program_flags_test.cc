#include "core/rpc/program_flags.h"

#include "core/rpc/member_session.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

TEST(ProgramFlagsTest, WhatIsServedSaysOfWhichVersionItIs) {
  Metrics metrics;
  ASSERT_TRUE(ServeMetrics({.metrics_port = 0}, metrics).ok());
  EXPECT_THAT(metrics.Text(), ::testing::HasSubstr(fmt::format(
                                  "shoal_build_info{{version=\"{}\"}} 1", ProgramVersion())));
}

}  // namespace
}  // namespace shoal::rpc

#include "core/rpc/program_flags.h"

#include "core/base/testing/local_name.h"
#include "core/rpc/member_session.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

TEST(ProgramFlagsTest, TheVersionNamesTheProtocol) {
  EXPECT_THAT(ProgramVersion(), ::testing::MatchesRegex("[0-9.]+\\+[0-9a-f]{8}"));
}

TEST(ProgramFlagsTest, WhatIsServedSaysOfWhichVersionItIs) {
  Metrics metrics;
  ASSERT_TRUE(ServeMetrics({.metrics_port = 0}, LocalName() + ":0", metrics).ok());
  EXPECT_THAT(metrics.Text(), ::testing::HasSubstr(fmt::format(
                                  "shoal_build_info{{version=\"{}\"}} 1", ProgramVersion())));
}

TEST(IndexOf, TakesWhatOrchestratorsSay) {
  EXPECT_EQ(*IndexOf({}, "node-7"), -1);
  EXPECT_EQ(*IndexOf({.index = "3"}, "node-7"), 3);
  const MemberFlags automatic = {.index = kIndexAuto};
  EXPECT_EQ(*IndexOf(automatic, "shoal-server-12"), 12);
  EXPECT_EQ(*IndexOf(automatic, "node007"), 7);
  EXPECT_THAT(std::string(IndexOf(automatic, "reef").status().message()),
              ::testing::HasSubstr("the host's name reef does not end in a number"));
  setenv("SLURM_PROCID", "4", 1);
  EXPECT_EQ(*IndexOf(automatic, "node-7"), 4);
  setenv("JOB_COMPLETION_INDEX", "5", 1);
  EXPECT_EQ(*IndexOf(automatic, "node-7"), 5);
  setenv("JOB_COMPLETION_INDEX", "five", 1);
  EXPECT_THAT(std::string(IndexOf(automatic, "node-7").status().message()),
              ::testing::HasSubstr("JOB_COMPLETION_INDEX is 'five'"));
  unsetenv("JOB_COMPLETION_INDEX");
  unsetenv("SLURM_PROCID");
}

}  // namespace
}  // namespace shoal::rpc

// What the part that times kernels leaves out, and what it counts for long rows; on the CPU.
#include "bench/gpu/floors.h"
#include "bench/gpu/testing_parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

using ::testing::HasSubstr;

TEST(KernelsPart, LeavesOutWhatThereIsNoTimeFor) {
  PartOptions options = OnTheCpu();
  options.budget = absl::Seconds(1);
  const PartReport report = RunOne("kernels", options);
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_EQ(report.tables().front().rows.size(), 1u) << "the heading alone";
  ASSERT_EQ(report.bars().size(), 1u);
  EXPECT_FALSE(report.bars().front().measured);
  EXPECT_THAT(report.bars().front().found, HasSubstr("no time was left for 8 groups"));
}

TEST(KernelsPart, CountsLogitsTwiceThatNoBlockHolds) {
  EXPECT_EQ(CrossEntropyCost(3, 50304).bytes, 3 * 50304 * (4 + 2));
  EXPECT_EQ(CrossEntropyCost(3, 152064).bytes, 3 * 152064 * (4 + 4 + 2));
}

}  // namespace
}  // namespace shoal::bench

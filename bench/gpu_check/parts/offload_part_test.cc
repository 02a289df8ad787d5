// The offload part on the CPU, and how it takes host memory.
#include "bench/gpu_check/parts/whole_model.h"
#include "bench/gpu_check/testing/parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

using ::testing::HasSubstr;

TEST(Parts, OffloadIsMeasured) {
  const PartReport report = RunOne("offload", OnTheCpu());
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  ASSERT_EQ(report.tables().size(), 3u);
  const std::vector<std::string>& row = report.tables()[1].rows.at(1);
  EXPECT_EQ(row[0], "64");
  EXPECT_GT(std::stod(row[3]), 0);
  EXPECT_GT(std::stod(row[4]), 0);
  EXPECT_THAT(row[6], HasSubstr("of 8 chunks"));
  EXPECT_EQ(row[12], "yes");
  EXPECT_EQ(report.tables()[2].rows.at(2).at(1), "128");
}

// Pinning all that is asked for fails.
TEST(HostPiece, TakesAsMuchAsThereIs) {
  PartOptions options = OnTheCpu();
  PartReport report("", "offload");
  PartRun run(options, report);
  EXPECT_EQ((*HostPiece::Make(run, 1 << 20))->budget_bytes(), 1 << 20);
  EXPECT_EQ((*HostPiece::Make(run, 0))->budget_bytes(), 0);
  const int64_t too_much = int64_t{1} << 60;
  EXPECT_FALSE(HostPiece::Make(run, too_much).ok());
}

// With little device memory and much host memory, offload makes sequences longer.
TEST(Parts, OffloadMakesSequencesLonger) {
  PartOptions options = OnTheCpu();
  options.sizes.offload_tokens = {};
  options.sizes.longest_tokens = 2048;
  options.make_device = [](int64_t) -> absl::StatusOr<worker::ComputeDevice> {
    return worker::MakeCpuComputeDevice(2, 5 << 20);
  };
  const PartReport report = RunOne("offload", options);
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  const auto& rows = report.tables()[2].rows;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_GT(std::stoi(rows[2][1]), std::stoi(rows[1][1]));
}

TEST(Parts, OffloadLeavesOutWhatThereIsNoTimeFor) {
  PartOptions options = OnTheCpu();
  options.budget = absl::ZeroDuration();
  const PartReport report = RunOne("offload", options);
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_EQ(report.tables()[1].rows.at(1).at(1), "no time was left");
  EXPECT_THAT(report.tables()[2].rows.at(2).at(0), HasSubstr("as far as there was time"));
}

}  // namespace
}  // namespace shoal::bench

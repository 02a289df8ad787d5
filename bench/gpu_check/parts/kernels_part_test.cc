// The part that times kernels, on the CPU: what it skips, what it counts for long rows, and what it
// does if there are several ways to compute, as on a GPU.
#include <algorithm>
#include <string>
#include <vector>

#include "bench/gpu_check/parts/floors.h"
#include "bench/gpu_check/testing/parts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class Paths : public ::testing::Test {
 protected:
  Paths() {
    options_.make_any_order_device = options_.make_own_kernels_device = [] {
      return absl::StatusOr<worker::ComputeDevice>(worker::MakeCpuComputeDevice(2));
    };
    // Each case calls twice: to discard what ran before, then for its own.
    options_.take_attention_backward = [this] {
      return ++calls_ % 2 == 0 ? "cuDNN" : "what was before";
    };
  }
  static std::vector<std::string> FirstColumn(const PartReport& report) {
    std::vector<std::string> names;
    for (const std::vector<std::string>& row : report.tables().front().rows) {
      names.push_back(row.front());
    }
    return names;
  }

  PartOptions options_ = OnTheCpu();
  int calls_ = 0;
};

TEST_F(Paths, OurOwnAttentionIsTimedBesideTheLibrarys) {
  const PartReport report = RunOne("kernels", options_);
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  const std::vector<std::string> names = FirstColumn(report);
  EXPECT_EQ(std::count(names.begin(), names.end(), "AttentionBackward"), 4);
  EXPECT_EQ(std::count(names.begin(), names.end(), "AttentionBackward, our own kernels"), 4);
  EXPECT_THAT(report.tables().front().rows[2][1], HasSubstr(", by cuDNN"));
  const nlohmann::json& attention = report.values().at("attention");
  ASSERT_EQ(attention.size(), 4u) << "PyTorch's are held against the library's";
  EXPECT_EQ(attention[0].at("backward_by"), "cuDNN");
}

TEST_F(Paths, TrainingSaysByWhatAttentionBackwardRan) {
  const PartReport report = RunOne("train", options_);
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_THAT(report.tables().front().rows[1].back(), HasSubstr("attention backward by cuDNN"));
}

TEST_F(Paths, KernelsThatTakeLibrariesPlacesAreChecked) {
  const PartReport report = RunOne("ops", options_);
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  const std::vector<std::string> names = FirstColumn(report);
  EXPECT_THAT(names, Contains("MatmulByOwnKernels fp32"));
  EXPECT_THAT(names, Contains("AttentionBackwardByOwnKernels bf16"));
  EXPECT_THAT(names, Contains("AttentionBackwardInAnyOrder bf16"));
}

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

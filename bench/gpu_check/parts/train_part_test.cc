// The training part, on the CPU.
#include <cmath>
#include <map>
#include <string>

#include "bench/gpu_check/base/utilisation.h"
#include "bench/gpu_check/testing/parts.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST(Parts, TrainGivesEachCaseItsRate) {
  const PartReport report = RunOne("train", OnTheCpu());
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  const json& cases = report.values()["cases"];
  ASSERT_EQ(cases.size(), 2u);
  for (const json& c : cases) {
    // Random weights predict nothing: the loss is that of a uniform guess.
    EXPECT_NEAR(c["loss"].get<double>(), std::log(512.0), 0.1);
    EXPECT_NEAR(c["tokens_per_second"].get<double>() * c["step_seconds"].get<double>(),
                c["tokens"].get<double>(), 1e-6);
    EXPECT_GT(c["step_seconds"], c["microbatch_seconds"]);
    EXPECT_GT(c["utilisation"].get<double>(), 0);
  }
}

// The table of operators has all of a step's products, recomputed ones included.
TEST(Parts, TrainSaysWhereTheTimeGoes) {
  PartOptions options = OnTheCpu();
  options.sizes.train_profiles = 1;
  const TrainCase& c = options.sizes.train.front();
  const plan::ModelSpec spec = *c.Spec();
  const PartReport report = RunOne("train", options);
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  const json& operators = report.values()["cases"][0]["operators"];
  double flops = 0;
  std::map<std::string, int> calls;
  for (const json& of : operators) {
    flops += of["flops"].get<double>();
    calls[of["operator"]] = of["calls"];
    EXPECT_GT(of["bytes"], 0) << of;
    EXPECT_GE(of["seconds"], 0) << of;
  }
  // Attention's backward pass has five products, which utilisation counts as four.
  const double attention = static_cast<double>(spec.layers * c.sequences) *
                           plan::BlockAttentionFlops(spec, std::pow(c.tokens / c.sequences, 2));
  EXPECT_NEAR(flops / (TrainingFlops(spec, c.tokens, c.sequences) + attention / 2), 1, 0.05);
  EXPECT_EQ(calls["Matmul, weight gradient"], 4 * spec.layers + 1);
  EXPECT_EQ(calls["SwiGluBackward"], spec.layers);
  EXPECT_EQ(report.tables()[1].rows.size(), 1 + operators.size());
  EXPECT_TRUE(report.values()["cases"][1]["operators"].empty());
}

TEST(Parts, TrainGoesOnWhereACaseDoesNotFit) {
  PartOptions options = OnTheCpu();
  options.sizes.train = {{"tiny", 1 << 15}, {"tiny", 64}};
  options.make_device = [](int64_t) -> absl::StatusOr<worker::ComputeDevice> {
    return worker::MakeCpuComputeDevice(2, 16 << 20);
  };
  const PartReport report = RunOne("train", options);
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  const auto& rows = report.tables().front().rows;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_THAT(rows[1].back(), HasSubstr("does not fit: needs"));
  EXPECT_EQ(rows[2].back(), "");
  EXPECT_EQ(report.values()["cases"][0]["left_out"], rows[1].back());
}

TEST(Parts, TrainWithoutAnOptimizerSaysSo) {
  PartOptions options = OnTheCpu();
  options.flat = nullptr;
  const PartReport report = RunOne("train", options);
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_EQ(report.tables().front().rows[1].back(), "without the optimizer");
  EXPECT_EQ(report.values()["cases"][0]["tokens_per_second"], 0);
}

TEST(Parts, TrainLeavesOutWhatThereIsNoTimeFor) {
  PartOptions options = OnTheCpu();
  options.budget = absl::ZeroDuration();
  const PartReport report = RunOne("train", options);
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_EQ(report.tables().front().rows[1].back(), "no time was left");
}

// A new process continues after one whose GPU was lost within a case.
TEST(Parts, TrainGoesOnAfterACaseThatLostTheDevice) {
  PartOptions options = OnTheCpu();
  options.output = NewFolder();
  options.make_device = [](int64_t) -> absl::StatusOr<worker::ComputeDevice> {
    return Internal("an illegal access");
  };
  options.is_lost = [] { return true; };
  const PartReport first = RunOne("train", options);
  EXPECT_EQ(GoesOnFrom(first), 1);
  EXPECT_EQ(first.tables().front().rows.size(), 2u) << "no case is tried after it";
  options.make_device = OnTheCpu().make_device;
  options.is_lost = [] { return false; };
  options.from = 1;
  const PartReport second = RunOne("train", options);
  EXPECT_EQ(GoesOnFrom(second), 0);
  ASSERT_EQ(second.tables().size(), 2u);
  EXPECT_EQ(second.tables().front().rows.size(), 1 + options.sizes.train.size());
  EXPECT_EQ(second.values().at("cases").size(), options.sizes.train.size());
  EXPECT_EQ(second.state(), PartState::kFailed);
  EXPECT_THAT(second.why(), HasSubstr("an illegal access"));
}

}  // namespace
}  // namespace shoal::bench

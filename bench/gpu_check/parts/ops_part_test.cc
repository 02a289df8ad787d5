// The part that checks operators, and its checks of the servers' kernels.
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "bench/gpu_check/base/cpu_flat_kernels.h"
#include "bench/gpu_check/parts/op_checks.h"
#include "bench/gpu_check/report/gpu_report.h"
#include "bench/gpu_check/testing/parts.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Parts, OpsAreThoseOfTheCpu) {
  const PartReport report = RunOne("ops", OnTheCpu());
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_GT(report.tables().front().rows.size(), 30u);
}

TEST(Parts, OpsAreCheckedAsJobsHaveThemToo) {
  PartOptions options = OnTheCpu();
  options.make_any_order_device = [] { return worker::MakeCpuComputeDevice(2); };
  const PartReport report = RunOne("ops", options);
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  std::vector<std::string> operators;
  for (const std::vector<std::string>& row : report.tables().front().rows) {
    operators.push_back(row.front());
  }
  EXPECT_THAT(operators, ::testing::IsSupersetOf({"MatmulTuned bf16", "MatmulTuned fp32",
                                                  "AttentionBackwardInAnyOrder bf16"}));
}

TEST(Parts, OpsThatAreWrongAreNamed) {
  PartReport report("", "ops");
  report.AddTable("", "", {"operator", "checks", "worst", "error", "bound", ""});
  const std::vector<worker::OpCheck> checks = {{"Add bf16 3x4", 1e-3, 1e-2, ""},
                                               {"Add bf16 5x6", 2e-2, 1e-2, ""},
                                               {"Add bf16 7x8", 1e-4, 1e-2, "two runs differ"},
                                               {"Add fp32 3x4", 1e-7, 1e-6, ""},
                                               {"Add fp32 5x6", 5e-7, 1e-6, ""}};
  AddOpRows(checks, report);
  EXPECT_EQ(AddOpsEnd("no time was left", report), 2);
  ASSERT_EQ(report.tables().size(), 2u);
  EXPECT_THAT(report.tables()[0].rows[1],
              ElementsAre("Add bf16", "3", "Add bf16 5x6", "2.0e-02", "1.0e-02", "**wrong**"));
  EXPECT_THAT(report.tables()[0].rows[2],
              ElementsAre("Add fp32", "2", "Add fp32 5x6", "5.0e-07", "1.0e-06", "right"));
  EXPECT_THAT(report.tables()[1].rows[2],
              ElementsAre("Add bf16 7x8", "1.0e-04", "1.0e-02", "two runs differ"));
  EXPECT_FALSE(report.bars().front().met);
}

TEST(Parts, OpsThatTheTimeDidNotSufficeForAreNoBarMet) {
  PartOptions options = OnTheCpu();
  options.budget = absl::ZeroDuration();
  const PartReport report = RunOne("ops", options);
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_FALSE(report.bars().front().measured);
  EXPECT_THAT(report.bars().front().found, HasSubstr("no time was left"));
}

// A kernel whose result is off by one bit.
class Inexact final : public FlatKernels {
 public:
  absl::Status AdamW(worker::Stream& stream, const server::UpdateScalars& scalars,
                     const AdamWArrays& arrays) const override {
    server::UpdateScalars other = scalars;
    other.step_size = std::nextafter(other.step_size, 1.0F);
    return CpuFlatKernels().AdamW(stream, other, arrays);
  }
  absl::Status Add(worker::Stream& stream, const void* gradient, DType type, float* accumulator,
                   int64_t count) const override {
    return CpuFlatKernels().Add(stream, gradient, type, accumulator, count - 1);
  }
  int64_t RefusedCounts(int64_t) const override { return 3; }
  absl::Status AddExact(worker::Stream& stream, const void* gradient, DType type,
                        int64_t* accumulator, int64_t* refused, int64_t count) const override {
    refused[2] = 1;
    return CpuFlatKernels().AddExact(stream, gradient, type, accumulator, refused, count);
  }
  absl::Status ExactToFloat(worker::Stream& stream, const int64_t* accumulator, float* value,
                            int64_t count) const override {
    return CpuFlatKernels().ExactToFloat(stream, accumulator, value, count);
  }
  absl::Status Statistics(worker::Stream&, const float*, server::GradientStatistics*,
                          int64_t) const override {
    return Internal("it does not start");
  }
};

TEST(Parts, OpsGoOnAfterACheckThatLostTheDevice) {
  PartOptions options = OnTheCpu();
  const PartReport whole = RunOne("ops", options);
  ASSERT_EQ(whole.state(), PartState::kDone) << whole.why();
  options.output = NewFolder();
  const Inexact inexact;
  options.flat = &inexact;
  options.is_lost = [] { return true; };
  const PartReport first = RunOne("ops", options);
  EXPECT_EQ(first.state(), PartState::kFailed);
  EXPECT_EQ(GoesOnFrom(first), 1);
  EXPECT_LT(first.tables().front().rows.size(), 10u) << "nothing is checked after it";
  EXPECT_TRUE(first.bars().empty());
  options.from = 1;
  const PartReport second = RunOne("ops", options);
  EXPECT_EQ(GoesOnFrom(second), 0);
  EXPECT_EQ(second.state(), PartState::kFailed);
  ASSERT_EQ(second.bars().size(), 1u);
  EXPECT_FALSE(second.bars().front().met);
  EXPECT_EQ(second.tables().front().rows.size(), whole.tables().front().rows.size());
  EXPECT_EQ(second.values().at("checks"), whole.values().at("checks"));
  ASSERT_EQ(second.tables().size(), 2u) << "what was wrong before is told";
  EXPECT_THAT(second.why(), HasSubstr("checks of operators failed"));
}

// Adds to the refused products that an earlier process of the part noted.
TEST(Parts, ProductsThatWereRefusedAreKept) {
  PartOptions options = OnTheCpu();
  EXPECT_FALSE(RefusedProductsOf(RunOne("ops", options)).has_value());
  options.output = NewFolder();
  options.take_refused_products = [] {
    return std::map<std::string, int64_t>{{"C[3, 5] of bf16", 7}};
  };
  EXPECT_EQ(RefusedProductsOf(RunOne("ops", options))->at("C[3, 5] of bf16"), 7);
  options.from = 1;
  const PartReport second = RunOne("ops", options);
  EXPECT_EQ(RefusedProductsOf(second)->at("C[3, 5] of bf16"), 14);
  const auto written = WriteGpuReport(LoadResults(options.output, PartSizes(), *ChosenParts("ops")),
                                      options.output, {});
  ASSERT_TRUE(written.ok());
  const std::string text = *ReadFile(written->path);
  EXPECT_THAT(text, HasSubstr("## Matrix products that cuBLASLt refused"));
  EXPECT_THAT(text, HasSubstr("Shapes in all parts: 1."));
  EXPECT_THAT(text, HasSubstr("| ops | C[3, 5] of bf16 | 14 |"));
}

TEST(FlatChecks, SeeABit) {
  worker::ComputeDevice compute_device = worker::MakeCpuComputeDevice(1);
  const auto right = CheckFlatKernels(*compute_device.device, compute_device.ops->stream(),
                                      CpuFlatKernels(), 3, 9001);
  EXPECT_EQ(right.size(), 7u);
  for (const worker::OpCheck& check : right) {
    EXPECT_TRUE(check.passed()) << check.name << ": " << check.wrong;
  }
  for (const worker::OpCheck& check :
       CheckFlatKernels(*compute_device.device, compute_device.ops->stream(), Inexact(), 3, 9001)) {
    EXPECT_FALSE(check.passed()) << check.name;
  }
}

}  // namespace
}  // namespace shoal::bench

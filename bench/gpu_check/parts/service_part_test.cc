// The part that runs processes, with workers on the CPU.
#include <cstdlib>

#include "bench/gpu_check/base/cpu_flat_kernels.h"
#include "bench/gpu_check/base/parts.h"
#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

using ::testing::HasSubstr;

PartOptions OnTheCpu() {
  PartOptions options;
  options.make_device = [](int64_t budget) -> absl::StatusOr<worker::ComputeDevice> {
    return worker::MakeCpuComputeDevice(1, budget);
  };
  options.flat = &CpuFlatKernels();
  options.sizes = SmallSizes();
  options.device = plan::DeviceKind::kCpu;
  options.programs = SHOAL_BIN_DIRECTORY;
  options.output = ::testing::TempDir() + "/service-part";
  return options;
}

TEST(ServicePart, HoldsAStepThroughServersAgainstAResidentOne) {
  const PartOptions options = OnTheCpu();
  const PartReport report = RunParts(*ChosenParts("service"), options).front();
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  const auto& rows = report.tables().front().rows;
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_GT(std::stod(rows[1][1]), 0);
  EXPECT_GT(std::stod(rows[2][1]), 0);
  for (size_t share : {3, 4, 5}) {
    EXPECT_GE(std::stod(rows[2][share]), 0);
    EXPECT_LE(std::stod(rows[2][share]), 100);
  }
  EXPECT_EQ(report.bars().size(), 1u);
  EXPECT_THAT(*ReadFile(options.output + "/service.log"), HasSubstr("==> worker-0.log"));
}

TEST(ServicePart, SaysThatNoTimeWasLeft) {
  PartOptions options = OnTheCpu();
  options.budget = absl::ZeroDuration();
  const PartReport report = RunParts(*ChosenParts("service"), options).front();
  EXPECT_EQ(report.state(), PartState::kFailed);
  EXPECT_EQ(report.why(), "no time was left");
  EXPECT_EQ(report.tables().front().rows.size(), 2u);  // the resident one
}

TEST(ServedPart, HoldsLossesAgainstTheCpus) {
  PartOptions options = OnTheCpu();
  const char* const data = std::getenv("SHOAL_TEST_DATA");
  if (data == nullptr) {
    GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
  }
  options.data = data;
  const PartReport report = RunParts(*ChosenParts("served"), options).front();
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  ASSERT_EQ(report.tables().front().rows.size(), 4u);
  EXPECT_TRUE(report.bars().front().met);
}

TEST(ServicePart, IsSkippedWithoutThePrograms) {
  PartOptions options;
  options.programs = "/nowhere";
  const PartReport report = RunParts(*ChosenParts("service"), options).front();
  EXPECT_EQ(report.state(), PartState::kSkipped);
  EXPECT_EQ(report.why(), "/nowhere/shoal is not there");
}

}  // namespace
}  // namespace shoal::bench

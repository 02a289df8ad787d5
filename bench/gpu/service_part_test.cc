// The part of the GPU check that runs processes, with workers on the CPU.
#include "bench/gpu/parts.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

TEST(ServicePart, HoldsAStepThroughServersAgainstAResidentOne) {
  PartOptions options;
  options.make_machine = [](int64_t budget) -> absl::StatusOr<worker::Machine> {
    return worker::MakeCpuMachine(1, budget);
  };
  options.sizes = SmallSizes();
  options.device = plan::DeviceKind::kCpu;
  options.programs = SHOAL_BIN_DIRECTORY;
  const PartReport report = RunParts(*ChosenParts("service"), options).front();
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  const auto& rows = report.tables().front().rows;
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_GT(std::stod(rows[1][0]), 0);
  EXPECT_GT(std::stod(rows[1][1]), 0);
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

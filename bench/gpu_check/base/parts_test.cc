// The GPU check's parts on the CPU: choosing them, running all without a machine, and those that
// measure ceilings and kernels.
#include "bench/gpu_check/testing/parts.h"

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

using ::testing::HasSubstr;

TEST(Parts, AreChosenByName) {
  const auto one = ChosenParts("train");
  ASSERT_TRUE(one.ok());
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ(one->front().name, "train");
  EXPECT_EQ(ChosenParts("")->size(), Parts().size());
  EXPECT_THAT(std::string(ChosenParts("trane").status().message()), HasSubstr("machine, "));
}

TEST(Parts, MachineMeasuresCeilingsAndCopies) {
  const PartReport report = RunOne("machine", OnTheCpu());
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  for (const char* key :
       {"copy_bytes_per_second", "matrix_flops_per_second", "to_device_bytes_per_second",
        "to_host_bytes_per_second", "duplex_bytes_per_second"}) {
    EXPECT_GT(report.values()[key].get<double>(), 0) << key;
  }
  EXPECT_EQ(report.tables().front().rows[1], (std::vector<std::string>{"device", "the processor"}));
}

TEST(Parts, KernelsHaveEveryOperatorOfTheModel) {
  const PartReport report = RunOne("kernels", OnTheCpu());
  ASSERT_EQ(report.state(), PartState::kDone) << report.why();
  std::string names;
  for (const std::vector<std::string>& row : report.tables().front().rows) {
    names += row.front() + "\n";
    if (row.front() != "operator") {
      EXPECT_GE(std::stod(row[4]), 0.01) << row.front();
    }
  }
  for (const char* name : {"Matmul, qkv, forward",
                           "Matmul, down, weight gradient",
                           "AttentionForward",
                           "AttentionBackward",
                           "RmsNormForward",
                           "RmsNormBackward",
                           "RotaryForward",
                           "SwiGluForward",
                           "SwiGluBackward",
                           "AddBias",
                           "Scale",
                           "AddColumnSums",
                           "GatherRows",
                           "ScatterRows",
                           "EmbeddingForward",
                           "EmbeddingBackward",
                           "SoftmaxCrossEntropy",
                           "Convert",
                           "Zero",
                           "AdamW",
                           "accumulate, fp32 exact",
                           "gradient statistics"}) {
    EXPECT_THAT(names, HasSubstr(name));
  }
  EXPECT_EQ(report.bars().size(), 1u);
  EXPECT_EQ(report.values()["attention"].size(), 4u);
}

TEST(Parts, AMachineThatCannotBeMadeFailsThem) {
  PartOptions options = OnTheCpu();
  options.data = "anywhere";
  options.make_device = [](int64_t) -> absl::StatusOr<worker::ComputeDevice> {
    return Internal("the device is gone");
  };
  for (const PartReport& report : RunParts(*ChosenParts(""), options)) {
    EXPECT_NE(report.state(), PartState::kDone) << report.name();
    EXPECT_NE(report.why(), "") << report.name();
  }
}

TEST(Parts, KernelsGoOnAfterACaseThatLostTheDevice) {
  PartOptions options = OnTheCpu();
  options.output = NewFolder();
  const PartReport whole = RunOne("kernels", options);
  ASSERT_EQ(whole.state(), PartState::kDone) << whole.why();
  options.from = 1;
  const PartReport again = RunOne("kernels", options);
  EXPECT_EQ(again.state(), PartState::kDone) << again.why();
  EXPECT_GT(again.tables().front().rows.size(), whole.tables().front().rows.size());
  EXPECT_GT(again.values().at("ratios").size(), whole.values().at("ratios").size());
}

}  // namespace
}  // namespace shoal::bench

// The part with the golden steps, on the CPU.
#include <cstdlib>
#include <filesystem>

#include "bench/gpu_check/testing/parts.h"
#include "core/base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

std::string TestData() {
  const char* const folder = std::getenv("SHOAL_TEST_DATA");
  return folder == nullptr ? "" : folder;
}

TEST(Parts, GoldenIsSkippedWithoutData) {
  const PartReport report = RunOne("golden", OnTheCpu());
  EXPECT_EQ(report.state(), PartState::kSkipped);
  EXPECT_THAT(report.why(), HasSubstr("--data"));
}

TEST(Parts, GoldenStepsAreRightOnTheCpu) {
  PartOptions options = OnTheCpu();
  options.data = TestData();
  if (options.data.empty()) {
    GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
  }
  const PartReport report = RunOne("golden", options);
  EXPECT_EQ(report.state(), PartState::kDone) << report.why();
  EXPECT_EQ(report.tables().front().rows.size(), 5u);  // heading, three in fp32, one in bf16
}

TEST(Parts, GoldenStepsThatDifferFail) {
  PartOptions options = OnTheCpu();
  if (TestData().empty()) {
    GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
  }
  options.data = NewFolder();
  fs::create_directories(options.data + "/golden");
  fs::create_directory_symlink(TestData() + "/stories260k", options.data + "/stories260k");
  const std::string file = "/golden/stories260k_steps.json";
  json golden = json::parse(*ReadFile(TestData() + file));
  golden["steps"][1]["grad_norm"] = golden["steps"][1]["grad_norm"].get<double>() * 1.001;
  ASSERT_TRUE(WriteFileAtomically(options.data + file, golden.dump()).ok());
  const PartReport report = RunOne("golden", options);
  EXPECT_EQ(report.state(), PartState::kFailed);
  const auto& rows = report.tables().front().rows;
  EXPECT_EQ(rows[1].back(), "right");
  EXPECT_EQ(rows[2].back(), "**wrong**");
}

}  // namespace
}  // namespace shoal::bench

#include "bench/report/report.h"

#include <filesystem>

#include "core/base/file.h"
#include "core/base/process/subprocess.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::bench {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Report, HasItsPicturesAndItsChartsWhereThereIsGnuplot) {
  const std::string folder = testing::TempDir() + "/report_test";
  std::filesystem::remove_all(folder);
  Report report("charts");
  report.Picture("drawn", "a picture", "<svg/>");
  const chart::Panel panel{
      .curves = {{.name = "a", .colour = "#000000", .points = {{0, 1}, {1, 2}}}}};
  report.Chart("reckoned", "a chart", chart::LineChart("Title", {panel}));
  ASSERT_TRUE(report.Write(folder, "name", "Title", "Introduction.").ok());
  const std::string text = *ReadFile(folder + "/name.md");
  EXPECT_THAT(text, HasSubstr("![a picture](charts/drawn.svg)"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/charts/drawn.svg"));
  const bool gnuplot = ProgramExists("gnuplot");
  EXPECT_EQ(std::filesystem::exists(folder + "/charts/reckoned.svg"), gnuplot);
  if (gnuplot) {
    EXPECT_THAT(text, HasSubstr("![a chart](charts/reckoned.svg)"));
  } else {
    EXPECT_THAT(text, Not(HasSubstr("a chart")));
  }
}

}  // namespace
}  // namespace shoal::bench

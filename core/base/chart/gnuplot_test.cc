#include "core/base/chart/gnuplot.h"

#include <cmath>
#include <cstdlib>

#include "core/base/process/subprocess.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::chart {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const double kMissing = std::nan("");

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

Panel TwoCurves() {
  return {.title = "speed-up",
          .x_label = "devices",
          .y_label = "times the baseline's",
          .x_places = {"1", "2", "4"},
          .curves = {
              {.name = "first", .colour = "#112233", .points = {{0, 1}, {1, 1.1}, {2, 1.2}}},
              {.name = "second",
               .colour = "#445566",
               .style = Curve::Style::kDashes,
               .points = {{0, 1}, {1, kMissing}, {2, 1.3}}},
              {.colour = "#445566", .style = Curve::Style::kRings, .points = {{1, 1.15}}},
              {.name = "in the legend alone", .colour = "#000000", .style = Curve::Style::kRings}}};
}

TEST(LineChart, HoldsEveryValueThatIsThere) {
  const std::string script = LineChart("Title", {TwoCurves(), TwoCurves()}).script;
  EXPECT_EQ(Count(script, "0 1\n1 1.1\n2 1.2\nEND\n"), 2u);
  EXPECT_EQ(Count(script, "0 1\n2 1.3\nEND\n"), 2u);
  EXPECT_EQ(Count(script, "<< END"), 6u);
  EXPECT_EQ(Count(script, "title 'second'"), 1u);
  EXPECT_EQ(Count(script, "title 'in the legend alone'"), 1u);
  EXPECT_THAT(script, HasSubstr("'times the baseline''s'"));
  EXPECT_THAT(script, Not(HasSubstr("nan")));
}

TEST(LineChart, PowersOfTenAreForThePanelThatAsks) {
  Panel panel = TwoCurves();
  panel.log_y = true;
  const std::string script = LineChart("Title", {panel, TwoCurves()}).script;
  EXPECT_EQ(Count(script, "\nset logscale y\n"), 1u);
  EXPECT_EQ(Count(script, "\nunset logscale y\n"), 1u);
}

TEST(Charts, TextCannotEndAStringOfTheScript) {
  const std::string script = LineChart("it's `here`\nset output 'x'", {TwoCurves()}).script;
  EXPECT_THAT(script, HasSubstr("'it''s `here` set output ''x'''"));
}

TEST(HeatMap, EmptyCellsAreLeftOut) {
  const std::string script =
      HeatMap("Title", {{"panel", "x", "y", {"a", "b"}, {"r"}, {{0.8125, kMissing}}}}, "red, blue")
          .script;
  EXPECT_THAT(script, HasSubstr("\n0 0 0.8125 "));
  EXPECT_THAT(script, Not(HasSubstr("nan")));
}

class WithGnuplot : public testing::Test {
 protected:
  void SetUp() override {
    if (!ProgramExists("gnuplot")) {
      GTEST_SKIP() << "gnuplot is not there (apt-get install gnuplot-nox)";
    }
  }
};

TEST_F(WithGnuplot, DrawsLines) {
  const Panel numbers{.title = "numbers",
                      .curves = {{.name = "marks",
                                  .colour = "#000000",
                                  .style = Curve::Style::kMarks,
                                  .shape = 3,
                                  .points = {{10, 1}, {1000, 100}}}},
                      .log_x = true,
                      .log_y = true};
  const auto svg =
      RenderSvg(LineChart("it's <this> & \"that\"", {TwoCurves(), numbers, {.title = "none"}}));
  ASSERT_TRUE(svg.ok()) << svg.status();
  EXPECT_THAT(*svg, HasSubstr("<title>it's &lt;this&gt; &amp; \"that\"</title>"));
  for (const char* text : {"second", "in the legend alone", "marks", "1000"}) {
    EXPECT_THAT(*svg, HasSubstr(text));
  }
  EXPECT_THAT(*svg, HasSubstr("</svg>"));
}

TEST_F(WithGnuplot, DrawsHeatMaps) {
  const auto svg = RenderSvg(
      HeatMap("Title",
              {{"panel", "x", "y", {"a", "b"}, {"r", "s"}, {{0.8125, kMissing}, {1, 1.375}}},
               {"empty", "x", "y", {"a"}, {"r"}, {{kMissing}}}},
              "red: slower, blue: faster"));
  ASSERT_TRUE(svg.ok()) << svg.status();
  for (const char* text : {"0.81", "1.00", "1.38", "red: slower, blue: faster"}) {
    EXPECT_THAT(*svg, HasSubstr(text));
  }
}

TEST(RenderSvg, WithoutGnuplotNamesThePackage) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  const absl::Status status = RenderSvg(LineChart("Title", {TwoCurves()})).status();
  setenv("PATH", path.c_str(), 1);
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_REFUSED(status, "gnuplot-nox");
}

}  // namespace
}  // namespace shoal::chart

#include <algorithm>

#include "core/base/plot/heat_map.h"
#include "core/base/plot/line_chart.h"
#include "core/base/plot/scatter.h"
#include "core/base/plot/svg.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

TEST(Svg, TextIsEscaped) {
  Svg svg(100, 50, "a < b & \"c\"");
  svg.Text({1, 2}, "x > y");
  const std::string text = svg.Finish();
  EXPECT_THAT(text, HasSubstr("a &lt; b &amp; &quot;c&quot;"));
  EXPECT_THAT(text, HasSubstr("x &gt; y"));
  EXPECT_TRUE(text.ends_with("</svg>\n"));
}

TEST(Ticks, AreRoundAndCoverTheValues) {
  EXPECT_THAT(TicksFor(0, 1),
              ElementsAre(0, 0.2, 0.4, testing::DoubleEq(0.6000000000000001), 0.8, 1));
  for (const auto& [low, high] : {std::pair(0.93, 1.42), std::pair(-3.0, 17.0), std::pair(5.0, 5.0),
                                  std::pair(0.0, 73.0), std::pair(1e-4, 2e-4)}) {
    const std::vector<double> ticks = TicksFor(low, high);
    EXPECT_LE(ticks.front(), low + 1e-12);
    EXPECT_GE(ticks.back(), high - 1e-12);
    EXPECT_GE(ticks.size(), 2u);
    EXPECT_LE(ticks.size(), 9u);
    EXPECT_TRUE(std::is_sorted(ticks.begin(), ticks.end()));
  }
}

TEST(Ticks, PowersOfTenCoverTheValues) {
  using ::testing::DoubleEq;
  EXPECT_THAT(PowersOfTenFor(30, 15000), ElementsAre(DoubleEq(10), DoubleEq(100), DoubleEq(1000),
                                                     DoubleEq(10000), DoubleEq(100000)));
  EXPECT_THAT(PowersOfTenFor(0.1, 1), ElementsAre(DoubleEq(0.1), DoubleEq(1)));
  EXPECT_THAT(PowersOfTenFor(10, 10), ElementsAre(DoubleEq(10), DoubleEq(100)));
}

TEST(LineChart, PowersOfTenAreEvenlySpaced) {
  const std::string text = RenderLineChart(
      "Title", {{"only", "#112233"}},
      {{.x_places = {"1", "2", "3"}, .lines = {{1, 10, 100}}, .powers_of_ten = true}}, "");
  // The frame is 330 - 34 - 52 = 244 pixels high, from 44 + 34 downwards.
  for (const char* y : {"322", "200", "78"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("cy=\"{}", y)));
  }
}

TEST(LineChart, DrawsEveryValueThatIsThere) {
  const LinePanel panel{.title = "speed-up",
                        .x_label = "devices",
                        .y_label = "times the baseline",
                        .x_places = {"1", "2", "4"},
                        .lines = {{1, 1.1, 1.2}, {1, kMissing, 1.3}},
                        .rings = {{kMissing, 1.15, kMissing}},
                        .reference = 1};
  const std::string text = RenderLineChart(
      "Title", {{"first", "#112233"}, {"second", "#445566", true}}, {panel, panel}, "measured");
  EXPECT_EQ(Count(text, "<polyline"), 4u);
  // Five values of lines in each of two panels, two entries in the legend; and rings.
  EXPECT_EQ(Count(text, "<circle"), 2 * 5 + 2 + 2 * 1 + 1u);
  EXPECT_THAT(text, HasSubstr(">second<"));
  EXPECT_THAT(text, HasSubstr(">measured<"));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

TEST(HeatMap, ColoursTellGainFromLoss) {
  EXPECT_EQ(RatioColour(1, 0.4), "#ffffff");
  EXPECT_EQ(RatioColour(0.1, 0.4), RatioColour(0.6, 0.4));
  EXPECT_NE(RatioColour(0.9, 0.4), RatioColour(1.1, 0.4));
  const std::string text =
      RenderHeatMap("Title", {{"panel", "x", "y", {"a", "b"}, {"r"}, {{0.805, kMissing}}}});
  EXPECT_THAT(text, HasSubstr(">0.81<"));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

TEST(Scatter, TheFrontIsWhatNothingBeatsInBoth) {
  const std::vector<ScatterPoint> points = {{"best at least", 1, 5},
                                            {"beaten in both", 3, 4},
                                            {"more for more", 2, 8},
                                            {"as much for more", 4, 8},
                                            {"less for as little", 1, 3}};
  EXPECT_THAT(ParetoFront(points), ElementsAre(0, 2));
  EXPECT_THAT(ParetoFront({}), ElementsAre());
}

TEST(Scatter, EveryPointIsDrawnWithItsName) {
  const std::string svg = RenderScatter(
      "title",
      {{.title = "panel", .points = {{"one", 1, 1, "#000000"}, {"two", 1, 1, "#000000"}}}});
  EXPECT_EQ(Count(svg, "<circle"), 2u);
  EXPECT_THAT(svg, HasSubstr(">one<"));
  EXPECT_THAT(svg, HasSubstr(">two<"));
}

}  // namespace
}  // namespace shoal::plot

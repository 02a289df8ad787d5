#include "core/plan/pipeline/svg.h"

#include <algorithm>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace shoal::plan

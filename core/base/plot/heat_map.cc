#include "core/base/plot/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/base/check.h"
#include "core/base/plot/svg.h"
#include "fmt/format.h"

namespace shoal::plot {
namespace {

constexpr double kNarrowestCell = 54;
constexpr double kCharacter = 7;  // about as wide
constexpr double kCellHeight = 34;
constexpr double kMapTop = 44;
constexpr double kMapAbove = 34;
constexpr double kMapBelow = 52;
constexpr double kSide = 40;  // for the y axis' label
constexpr double kMapRight = 22;
constexpr double kLegend = 44;
constexpr double kRange = 0.4;  // of the colours about 1

using Colour = std::array<double, 3>;
constexpr Colour kWhite = {255, 255, 255};
constexpr Colour kRed = {202, 77, 48};
constexpr Colour kBlue = {44, 113, 182};

double Longest(const std::vector<std::string>& labels) {
  size_t longest = 0;
  for (const std::string& label : labels) {
    longest = std::max(longest, label.size());
  }
  return kCharacter * static_cast<double>(longest);
}

double LeftOf(const HeatPanel& panel) { return kSide + Longest(panel.rows) + 8; }
double CellWidth(const HeatPanel& panel) {
  return std::max(kNarrowestCell, Longest(panel.columns) + 10);
}
double PanelWidth(const HeatPanel& panel) {
  return LeftOf(panel) + CellWidth(panel) * static_cast<double>(panel.columns.size()) + kMapRight;
}

void DrawPanel(const HeatPanel& panel, double left, Svg& svg) {
  const double cell = CellWidth(panel);
  const Point corner{left + LeftOf(panel), kMapTop + kMapAbove};
  const double width = cell * static_cast<double>(panel.columns.size());
  const double height = kCellHeight * static_cast<double>(panel.rows.size());
  svg.Text({corner.x, corner.y - 12}, panel.title, {.size = 13, .bold = true});
  for (size_t r = 0; r < panel.rows.size(); ++r) {
    const double y = corner.y + kCellHeight * static_cast<double>(r);
    svg.Text({corner.x - 8, y + kCellHeight / 2 + 4}, panel.rows[r],
             {.anchor = "end", .colour = kFaintInk});
    for (size_t c = 0; c < panel.columns.size(); ++c) {
      const double value = panel.values[r][c];
      if (!std::isfinite(value)) {
        continue;
      }
      const double x = corner.x + cell * static_cast<double>(c);
      svg.Rectangle({x + 0.5, y + 0.5}, cell - 1, kCellHeight - 1, RatioColour(value, kRange));
      const bool strong = std::abs(value - 1) > 0.75 * kRange;
      svg.Text({x + cell / 2, y + kCellHeight / 2 + 4}, fmt::format("{:.2f}", value),
               {.anchor = "middle", .colour = strong ? "#ffffff" : kInk});
    }
  }
  for (size_t c = 0; c < panel.columns.size(); ++c) {
    svg.Text({corner.x + cell * (static_cast<double>(c) + 0.5), corner.y + height + 18},
             panel.columns[c], {.anchor = "middle", .colour = kFaintInk});
  }
  svg.Text({corner.x + width / 2, corner.y + height + 38}, panel.x_label, {.anchor = "middle"});
  svg.Text({left + 22, corner.y + height / 2}, panel.y_label, {.anchor = "middle", .degrees = -90});
}

void DrawLegend(double top, Svg& svg) {
  constexpr int kSteps = 40;
  constexpr double kStepWidth = 5;
  for (int i = 0; i < kSteps; ++i) {
    const double ratio = 1 - kRange + 2 * kRange * (i + 0.5) / kSteps;
    svg.Rectangle({kSide + kStepWidth * i, top}, kStepWidth + 0.5, 12, RatioColour(ratio, kRange));
  }
  const double end = kSide + kStepWidth * kSteps;
  for (const auto& [x, text] : {std::pair(kSide, fmt::format("{:.1f}", 1 - kRange)),
                                std::pair((kSide + end) / 2, std::string("1")),
                                std::pair(end, fmt::format("{:.1f}", 1 + kRange))}) {
    svg.Text({x, top + 26}, text, {.size = 11, .anchor = "middle", .colour = kFaintInk});
  }
  svg.Text({end + 16, top + 11}, "red: slower than the baseline, blue: faster");
}

}  // namespace

std::string RatioColour(double ratio, double range) {
  const double strength = std::min(1.0, std::abs(ratio - 1) / range);
  const Colour& end = ratio < 1 ? kRed : kBlue;
  Colour colour{};
  for (size_t i = 0; i < colour.size(); ++i) {
    colour[i] = kWhite[i] + strength * (end[i] - kWhite[i]);
  }
  return fmt::format("#{:02x}{:02x}{:02x}", static_cast<int>(colour[0]),
                     static_cast<int>(colour[1]), static_cast<int>(colour[2]));
}

std::string RenderHeatMap(const std::string& title, const std::vector<HeatPanel>& panels) {
  SHOAL_CHECK(!panels.empty());
  double width = 0;
  size_t rows = 0;
  for (const HeatPanel& panel : panels) {
    SHOAL_CHECK(panel.values.size() == panel.rows.size());
    width += PanelWidth(panel);
    rows = std::max(rows, panel.rows.size());
  }
  const double legend_top =
      kMapTop + kMapAbove + kCellHeight * static_cast<double>(rows) + kMapBelow + 6;
  Svg svg(width, legend_top + kLegend, title);
  svg.Text({20, 28}, title, {.size = 16, .bold = true});
  double left = 0;
  for (const HeatPanel& panel : panels) {
    DrawPanel(panel, left, svg);
    left += PanelWidth(panel);
  }
  DrawLegend(legend_top, svg);
  return svg.Finish();
}

}  // namespace shoal::plot

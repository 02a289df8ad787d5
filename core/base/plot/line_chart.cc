#include "core/base/plot/line_chart.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/plot/svg.h"
#include "fmt/format.h"

namespace shoal::plot {
namespace {

constexpr double kPanelWidth = 440;
constexpr double kPanelHeight = 330;
constexpr double kTop = 44;  // above the panels: the title
constexpr double kLeft = 62;
constexpr double kRight = 18;
constexpr double kAbove = 34;  // in a panel, above its frame
constexpr double kBelow = 52;
constexpr double kLegendRow = 22;
constexpr double kLegendColumn = 290;

// Where values lie in a panel's frame.
struct Frame {
  Point corner;
  double width = 0;
  double height = 0;
  size_t places = 1;
  double low = 0;
  double high = 1;
  bool powers_of_ten = false;

  Point At(size_t place, double value) const {
    const double step = width / static_cast<double>(places);
    return {corner.x + step * (static_cast<double>(place) + 0.5), Height(value)};
  }
  double Height(double value) const {
    const double share = powers_of_ten ? std::log10(value / low) / std::log10(high / low)
                                       : (value - low) / (high - low);
    return corner.y + height * (1 - share);
  }
};

std::vector<double> Values(const LinePanel& panel) {
  std::vector<double> values;
  for (const auto* group : {&panel.lines, &panel.rings}) {
    for (const auto& line : *group) {
      std::copy_if(line.begin(), line.end(), std::back_inserter(values),
                   [](double value) { return std::isfinite(value); });
    }
  }
  for (const double value : {panel.reference, panel.from_zero ? 0.0 : kMissing}) {
    if (std::isfinite(value)) {
      values.push_back(value);
    }
  }
  return values;
}

void DrawAxes(const LinePanel& panel, const std::vector<double>& ticks, const Frame& frame,
              Svg& svg) {
  const double left = frame.corner.x;
  const double right = left + frame.width;
  const double bottom = frame.corner.y + frame.height;
  for (const double tick : ticks) {
    const double y = frame.Height(tick);
    svg.Line({left, y}, {right, y}, kGridLine, 1);
    svg.Text({left - 8, y + 4}, fmt::format("{:g}", std::round(tick * 1e6) / 1e6),
             {.anchor = "end", .colour = kFaintInk});
  }
  svg.Line({left, bottom}, {right, bottom}, kFaintInk, 1);
  for (size_t i = 0; i < panel.x_places.size(); ++i) {
    const double x = frame.At(i, frame.low).x;
    svg.Line({x, bottom}, {x, bottom + 4}, kFaintInk, 1);
    svg.Text({x, bottom + 18}, panel.x_places[i], {.anchor = "middle", .colour = kFaintInk});
  }
  svg.Text({left + frame.width / 2, bottom + 38}, panel.x_label, {.anchor = "middle"});
  svg.Text({left - 46, frame.corner.y + frame.height / 2}, panel.y_label,
           {.anchor = "middle", .degrees = -90});
  svg.Text({left, frame.corner.y - 12}, panel.title, {.size = 13, .bold = true});
}

void DrawPanel(const std::vector<Series>& series, const LinePanel& panel, Point corner, Svg& svg) {
  std::vector<double> values = Values(panel);
  if (values.empty()) {
    values.push_back(panel.powers_of_ten ? 1 : 0);
  }
  const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
  const std::vector<double> ticks =
      panel.powers_of_ten ? PowersOfTenFor(*lowest, *highest) : TicksFor(*lowest, *highest);
  const Frame frame{.corner = {corner.x + kLeft, corner.y + kAbove},
                    .width = kPanelWidth - kLeft - kRight,
                    .height = kPanelHeight - kAbove - kBelow,
                    .places = std::max<size_t>(1, panel.x_places.size()),
                    .low = ticks.front(),
                    .high = ticks.back(),
                    .powers_of_ten = panel.powers_of_ten};
  DrawAxes(panel, ticks, frame, svg);
  if (std::isfinite(panel.reference)) {
    const double y = frame.Height(panel.reference);
    svg.Line({frame.corner.x, y}, {frame.corner.x + frame.width, y}, kFaintInk, 1.5, true);
  }
  for (size_t s = 0; s < panel.lines.size(); ++s) {
    std::vector<Point> points;
    for (size_t i = 0; i < panel.lines[s].size(); ++i) {
      if (std::isfinite(panel.lines[s][i])) {
        points.push_back(frame.At(i, panel.lines[s][i]));
      }
    }
    svg.Polyline(points, series[s].colour, series[s].width, series[s].dashed);
    for (const Point& point : points) {
      svg.Disc(point, series[s].width + 0.5, series[s].colour);
    }
  }
  for (size_t s = 0; s < panel.rings.size(); ++s) {
    for (size_t i = 0; i < panel.rings[s].size(); ++i) {
      if (std::isfinite(panel.rings[s][i])) {
        svg.Ring(frame.At(i, panel.rings[s][i]), 4.5, series[s].colour);
      }
    }
  }
}

void DrawLegend(const std::vector<Series>& series, const std::string& ring_legend, size_t columns,
                double top, Svg& svg) {
  const auto place = [&](size_t i) {
    return Point{kLeft + kLegendColumn * static_cast<double>(i % columns),
                 top + kLegendRow * static_cast<double>(i / columns)};
  };
  for (size_t s = 0; s < series.size(); ++s) {
    const Point at = place(s);
    svg.Line({at.x, at.y}, {at.x + 26, at.y}, series[s].colour, series[s].width, series[s].dashed);
    svg.Disc({at.x + 13, at.y}, series[s].width + 0.5, series[s].colour);
    svg.Text({at.x + 34, at.y + 4}, series[s].name);
  }
  if (!ring_legend.empty()) {
    const Point at = place(series.size());
    svg.Ring({at.x + 13, at.y}, 4.5, kFaintInk);
    svg.Text({at.x + 34, at.y + 4}, ring_legend);
  }
}

}  // namespace

std::vector<double> TicksFor(double low, double high) {
  const double span = std::max(high - low, 1e-9 * std::max({std::abs(low), std::abs(high), 1.0}));
  const double magnitude = std::pow(10, std::floor(std::log10(span / 4)));
  double step = 10 * magnitude;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (span / (factor * magnitude) <= 6) {
      step = factor * magnitude;
    }
  }
  const double first = std::floor(low / step + 1e-9);
  const double last = std::max(first + 1, std::ceil(high / step - 1e-9));
  std::vector<double> ticks;
  for (double i = first; i <= last; ++i) {
    ticks.push_back(i * step);
  }
  return ticks;
}

std::vector<double> PowersOfTenFor(double low, double high) {
  SHOAL_CHECK(low > 0);
  const double first = std::floor(std::log10(low) + 1e-9);
  const double last = std::max(first + 1, std::ceil(std::log10(high) - 1e-9));
  std::vector<double> ticks;
  for (double i = first; i <= last; ++i) {
    ticks.push_back(std::pow(10, i));
  }
  return ticks;
}

std::string RenderLineChart(const std::string& title, const std::vector<Series>& series,
                            const std::vector<LinePanel>& panels, const std::string& ring_legend) {
  SHOAL_CHECK(!panels.empty());
  const double width = kPanelWidth * static_cast<double>(panels.size());
  const auto columns = std::max<size_t>(1, static_cast<size_t>((width - kLeft) / kLegendColumn));
  const size_t entries = series.size() + (ring_legend.empty() ? 0 : 1);
  const double legend_top = kTop + kPanelHeight + 18;
  const double rows = std::ceil(static_cast<double>(entries) / static_cast<double>(columns));
  Svg svg(width, legend_top + kLegendRow * rows, title);
  svg.Text({kLeft, 28}, title, {.size = 16, .bold = true});
  for (size_t i = 0; i < panels.size(); ++i) {
    SHOAL_CHECK(panels[i].lines.size() <= series.size());
    SHOAL_CHECK(panels[i].rings.size() <= series.size());
    DrawPanel(series, panels[i], {kPanelWidth * static_cast<double>(i), kTop}, svg);
  }
  DrawLegend(series, ring_legend, columns, legend_top, svg);
  return svg.Finish();
}

}  // namespace shoal::plot

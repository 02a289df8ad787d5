#include "core/base/plot/scatter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/base/check.h"
#include "core/base/plot/line_chart.h"
#include "core/base/plot/svg.h"
#include "fmt/format.h"

namespace shoal::plot {
namespace {

constexpr double kScatterPanelWidth = 620;
constexpr double kScatterPanelHeight = 440;
constexpr double kScatterTop = 44;
constexpr double kScatterLeft = 66;
constexpr double kScatterRight = 24;
constexpr double kScatterAbove = 34;
constexpr double kScatterBelow = 56;
constexpr double kNameHeight = 13;
constexpr double kNameWidth = 6.0;  // of a character

struct Axis {
  double begin = 0;  // in pixels
  double end = 0;
  std::vector<double> ticks;

  double At(double value) const {
    return begin + (value - ticks.front()) / (ticks.back() - ticks.front()) * (end - begin);
  }
};

Axis AxisOf(const std::vector<ScatterPoint>& points, double ScatterPoint::*measure, double begin,
            double end) {
  double low = std::numeric_limits<double>::infinity();
  double high = -low;
  for (const ScatterPoint& point : points) {
    low = std::min(low, point.*measure);
    high = std::max(high, point.*measure);
  }
  if (points.empty()) {
    low = 0;
    high = 1;
  }
  return {begin, end, TicksFor(low, high)};
}

std::string TickText(double tick) { return fmt::format("{:g}", std::round(tick * 1e6) / 1e6); }

void DrawAxes(const ScatterPanel& panel, const Axis& x, const Axis& y, Svg& svg) {
  for (const double tick : y.ticks) {
    svg.Line({x.begin, y.At(tick)}, {x.end, y.At(tick)}, kGridLine, 1);
    svg.Text({x.begin - 8, y.At(tick) + 4}, TickText(tick), {.anchor = "end", .colour = kFaintInk});
  }
  for (const double tick : x.ticks) {
    svg.Line({x.At(tick), y.begin}, {x.At(tick), y.end}, kGridLine, 1);
    svg.Text({x.At(tick), y.begin + 18}, TickText(tick), {.anchor = "middle", .colour = kFaintInk});
  }
  svg.Line({x.begin, y.begin}, {x.end, y.begin}, kFaintInk, 1);
  svg.Text({(x.begin + x.end) / 2, y.begin + 40}, panel.x_label, {.anchor = "middle"});
  svg.Text({x.begin - 48, (y.begin + y.end) / 2}, panel.y_label,
           {.anchor = "middle", .degrees = -90});
  svg.Text({x.begin, y.end - 12}, panel.title, {.size = 13, .bold = true});
}

struct Box {
  double left = 0;
  double top = 0;
  double right = 0;
  double bottom = 0;

  bool Overlaps(const Box& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

// What names keep clear of: the line, in pieces.
std::vector<Box> BoxesAlong(const std::vector<Point>& line) {
  constexpr int kPieces = 24;
  std::vector<Box> boxes;
  for (size_t i = 1; i < line.size(); ++i) {
    for (int piece = 0; piece <= kPieces; ++piece) {
      const double part = static_cast<double>(piece) / kPieces;
      const double at_x = line[i - 1].x + part * (line[i].x - line[i - 1].x);
      const double at_y = line[i - 1].y + part * (line[i].y - line[i - 1].y);
      boxes.push_back({at_x - 1, at_y - 1, at_x + 1, at_y + 1});
    }
  }
  return boxes;
}

// Names beside their points, on the side where least is in the way.
void DrawNames(const std::vector<ScatterPoint>& points, const Axis& x, const Axis& y,
               std::vector<Box> taken, Svg& svg) {
  for (const ScatterPoint& point : points) {
    const Point at = {x.At(point.x), y.At(point.y)};
    taken.push_back({at.x - 5, at.y - 5, at.x + 5, at.y + 5});
  }
  for (const ScatterPoint& point : points) {
    const Point at = {x.At(point.x), y.At(point.y)};
    const double width = kNameWidth * static_cast<double>(point.name.size());
    Box best;
    size_t best_overlaps = std::numeric_limits<size_t>::max();
    for (const double down : {0.0, -11.0, 11.0, -22.0, 22.0, -33.0, 33.0}) {
      for (const bool right : {true, false}) {
        const double left = right ? at.x + 8 : at.x - 8 - width;
        const double top = at.y + down - kNameHeight / 2;
        const Box box = {left, top, left + width, top + kNameHeight};
        const bool outside = box.left < x.begin - 4 || box.right > x.end + kScatterRight;
        const size_t overlaps =
            (outside ? 100 : 0) +
            static_cast<size_t>(std::count_if(
                taken.begin(), taken.end(), [&](const Box& other) { return box.Overlaps(other); }));
        if (overlaps < best_overlaps) {
          best = box;
          best_overlaps = overlaps;
        }
      }
    }
    taken.push_back(best);
    svg.Text({best.left, best.bottom - 3}, point.name, {.size = 11});
  }
}

void DrawPanel(const ScatterPanel& panel, Point corner, Svg& svg) {
  const Axis x = AxisOf(panel.points, &ScatterPoint::x, corner.x + kScatterLeft,
                        corner.x + kScatterPanelWidth - kScatterRight);
  const Axis y = AxisOf(panel.points, &ScatterPoint::y,
                        corner.y + kScatterPanelHeight - kScatterBelow, corner.y + kScatterAbove);
  DrawAxes(panel, x, y, svg);
  std::vector<Point> front;
  for (const size_t index : ParetoFront(panel.points)) {
    front.push_back({x.At(panel.points[index].x), y.At(panel.points[index].y)});
  }
  svg.Polyline(front, kFaintInk, 1.5, /*dashed=*/true);
  for (const ScatterPoint& point : panel.points) {
    svg.Disc({x.At(point.x), y.At(point.y)}, 4.5, point.colour);
  }
  DrawNames(panel.points, x, y, BoxesAlong(front), svg);
}

}  // namespace

std::vector<size_t> ParetoFront(const std::vector<ScatterPoint>& points) {
  std::vector<size_t> order(points.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return points[a].x != points[b].x ? points[a].x < points[b].x : points[a].y > points[b].y;
  });
  std::vector<size_t> front;
  for (const size_t index : order) {
    if (front.empty() || points[index].y > points[front.back()].y) {
      front.push_back(index);
    }
  }
  return front;
}

std::string RenderScatter(const std::string& title, const std::vector<ScatterPanel>& panels) {
  SHOAL_CHECK(!panels.empty());
  Svg svg(kScatterPanelWidth * static_cast<double>(panels.size()),
          kScatterTop + kScatterPanelHeight + 26, title);
  svg.Text({kScatterLeft, 28}, title, {.size = 16, .bold = true});
  for (size_t i = 0; i < panels.size(); ++i) {
    DrawPanel(panels[i], {kScatterPanelWidth * static_cast<double>(i), kScatterTop}, svg);
  }
  const double bottom = kScatterTop + kScatterPanelHeight + 12;
  svg.Line({kScatterLeft, bottom}, {kScatterLeft + 30, bottom}, kFaintInk, 1.5, /*dashed=*/true);
  svg.Text({kScatterLeft + 38, bottom + 4}, "nothing here is better in both",
           {.colour = kFaintInk});
  return svg.Finish();
}

}  // namespace shoal::plot

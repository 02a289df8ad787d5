#include "core/base/chart/gnuplot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "absl/strings/str_replace.h"
#include "core/base/check.h"
#include "core/base/process/subprocess.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::chart {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(1);
constexpr std::string_view kInk = "#1f2328";
constexpr std::string_view kFaintInk = "#57606a";
constexpr std::string_view kGridLine = "#e3e6ea";
constexpr std::array<int, 6> kShapes = {7, 5, 9, 13, 11, 15};  // gnuplot's numbers: filled ones

// Pixels.
constexpr double kTop = 44;  // above the panels: the title
constexpr double kPanelWidth = 520;
constexpr double kPanelHeight = 362;
constexpr double kLeft = 74;
constexpr double kRight = 18;
constexpr double kAbove = 34;  // in a panel, above its frame
constexpr double kBelow = 66;
constexpr double kLegendRow = 20;
constexpr double kLegendSample = 70;
constexpr double kCharacter = 8;
constexpr double kNarrowestCell = 54;
constexpr double kCellHeight = 34;
constexpr double kColourLegend = 60;
constexpr double kColourRange = 0.4;  // of colours, around 1

std::string Quoted(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, ' ');
  return fmt::format("'{}'", absl::StrReplaceAll(text, {{"'", "''"}}));
}

double WidthOf(std::string_view text) { return kCharacter * static_cast<double>(text.size()); }
double Longest(const std::vector<std::string>& texts) {
  double longest = 0;
  for (const std::string& text : texts) {
    longest = std::max(longest, WidthOf(text));
  }
  return longest;
}

// A picture's size in pixels; places count from the upper left corner.
struct Canvas {
  double width = 0;
  double height = 0;

  std::string Frame(double left, double top, double right, double bottom) const {
    return fmt::format(
        "set lmargin at screen {:.4f}; set rmargin at screen {:.4f}\n"
        "set tmargin at screen {:.4f}; set bmargin at screen {:.4f}\n",
        left / width, right / width, 1 - top / height, 1 - bottom / height);
  }
  std::string Head(const std::string& title) const {
    return fmt::format(
        "set terminal svg fixed size {:.0f},{:.0f} font 'sans-serif,12' background '#ffffff' "
        "noenhanced\n"
        "set multiplot\n"
        "set label 1 {} at screen {:.4f},{:.4f} font 'sans-serif,16' textcolor rgb '{}'\n"
        "set border 1 linecolor rgb '{}'\nset tics scale 0.4 nomirror textcolor rgb '{}'\n"
        "unset key\n",
        width, height, Quoted(title), 20 / width, 1 - 22 / height, kInk, kFaintInk, kFaintInk);
  }
};

std::string TitlesOf(const auto& panel) {
  return fmt::format(
      "set title {} font 'sans-serif,13' offset 0,-0.3\nset xlabel {}\nset ylabel {}\n",
      Quoted(panel.title), Quoted(panel.x_label), Quoted(panel.y_label));
}

std::string PlacesOf(std::string_view axis, const std::vector<std::string>& places) {
  std::string list;
  for (size_t i = 0; i < places.size(); ++i) {
    list += fmt::format("{}{} {}", i == 0 ? "" : ", ", Quoted(places[i]), i);
  }
  return fmt::format("set {}tics ({})\n", axis, list);
}

std::string LooksOf(const Curve& curve) {
  switch (curve.style) {
    case Curve::Style::kRings:
      return fmt::format("with points pt 6 ps 0.9 lw 2 lc rgb '{}'", curve.colour);
    case Curve::Style::kMarks:
      return fmt::format("with points pt {} ps {:g} lc rgb '{}'",
                         kShapes[static_cast<size_t>(curve.shape) % kShapes.size()],
                         0.4 * curve.width, curve.colour);
    default:
      return fmt::format("with linespoints lc rgb '{}' lw {:g}{} pt 7 ps {:g}", curve.colour,
                         curve.width, curve.style == Curve::Style::kDashes ? " dt (6,4)" : "",
                         0.2 + 0.1 * curve.width);
  }
}

std::string PlotOf(const Panel& panel) {
  std::string data;
  std::string plots;
  for (size_t i = 0; i < panel.curves.size(); ++i) {
    std::string points;
    for (const auto& [x, y] : panel.curves[i].points) {
      if (std::isfinite(x) && std::isfinite(y)) {
        points += fmt::format("{:.9g} {:.9g}\n", x, y);
      }
    }
    if (!points.empty()) {
      data += fmt::format("$curve{} << END\n{}END\n", i, points);
      plots += fmt::format("{}$curve{} using 1:2 {}", plots.empty() ? "" : ", ", i,
                           LooksOf(panel.curves[i]));
    }
  }
  if (plots.empty()) {
    return "set xrange [0:1]; set yrange [0:1]\nplot NaN\n";
  }
  return fmt::format("{}plot {}\n", data, plots);
}

std::string ScriptOf(const Panel& panel) {
  std::string text = TitlesOf(panel);
  if (panel.x_places.empty()) {
    text += "set xrange [*:*]; set xtics autofreq\n";
  } else {
    text +=
        fmt::format("set xrange [-0.5:{}]\n", static_cast<double>(panel.x_places.size()) - 0.5) +
        PlacesOf("x", panel.x_places);
  }
  text += panel.log_x ? "set logscale x\n" : "unset logscale x\n";
  text += panel.log_y ? "set logscale y\n" : "unset logscale y\n";
  text += panel.from_zero ? "set yrange [0:*]\n" : "set yrange [*:*]\n";
  return text + PlotOf(panel) + "unset label 1\n";
}

// Returns the legend's entries.
std::vector<Curve> NamedOnce(const std::vector<Panel>& panels) {
  std::vector<Curve> named;
  for (const Panel& panel : panels) {
    for (const Curve& curve : panel.curves) {
      if (!curve.name.empty() && std::none_of(named.begin(), named.end(), [&](const Curve& other) {
            return other.name == curve.name;
          })) {
        named.push_back(curve);
      }
    }
  }
  return named;
}

double CellWidth(const HeatPanel& panel) {
  return std::max(kNarrowestCell, Longest(panel.columns) + 10);
}
double LeftOf(const HeatPanel& panel) { return 44 + Longest(panel.rows); }
double WidthOf(const HeatPanel& panel) {
  return LeftOf(panel) + CellWidth(panel) * static_cast<double>(panel.columns.size()) + kRight;
}

std::string ScriptOf(const HeatPanel& panel) {
  std::string cells;
  for (size_t row = 0; row < panel.rows.size(); ++row) {
    for (size_t column = 0; column < panel.columns.size(); ++column) {
      const double value = panel.values.at(row).at(column);
      if (std::isfinite(value)) {
        const bool strong = std::abs(value - 1) > 0.75 * kColourRange;
        cells += fmt::format("{} {} {:.9g} {}\n", column, row, value, strong ? 0xffffff : 0x1f2328);
      }
    }
  }
  const std::string plot =
      cells.empty() ? "plot NaN\n"
                    : fmt::format(
                          "$cells << END\n{}END\n"
                          "plot $cells using 1:2:(0.49):(0.47):3 with boxxyerror fs solid noborder "
                          "fc palette, $cells using 1:2:(sprintf('%.2f', $3)):4 with labels "
                          "textcolor rgb variable\n",
                          cells);
  return fmt::format("{}{}{}set xrange [-0.5:{}]; set yrange [{}:-0.5]\n{}unset label 1\n",
                     TitlesOf(panel), PlacesOf("x", panel.columns), PlacesOf("y", panel.rows),
                     static_cast<double>(panel.columns.size()) - 0.5,
                     static_cast<double>(panel.rows.size()) - 0.5, plot);
}

}  // namespace

Chart LineChart(const std::string& title, const std::vector<Panel>& panels) {
  SHOAL_CHECK(!panels.empty());
  const size_t in_row = std::min<size_t>(panels.size(), 2);
  const size_t rows = (panels.size() + in_row - 1) / in_row;
  Canvas canvas = {.width = kPanelWidth * static_cast<double>(in_row)};
  double column = kLegendSample;
  const std::vector<Curve> named = NamedOnce(panels);
  for (const Curve& curve : named) {
    column = std::max(column, kLegendSample + WidthOf(curve.name));
  }
  const double legend_columns = std::max(1.0, std::floor(canvas.width / column));
  const double legend_top = kTop + kPanelHeight * static_cast<double>(rows);
  canvas.height =
      legend_top + 12 + kLegendRow * std::ceil(static_cast<double>(named.size()) / legend_columns);

  std::string script =
      canvas.Head(title) + fmt::format("set grid y lt 1 lw 1 lc rgb '{}'\n", kGridLine);
  for (size_t i = 0; i < panels.size(); ++i) {
    const double left = kPanelWidth * static_cast<double>(i % in_row);
    const double top = kTop + kPanelHeight * static_cast<double>(i / in_row);
    script += canvas.Frame(left + kLeft, top + kAbove, left + kPanelWidth - kRight,
                           top + kPanelHeight - kBelow) +
              ScriptOf(panels[i]);
  }
  script += canvas.Frame(10, legend_top, canvas.width - 10, canvas.height - 6) +
            fmt::format(
                "unset title; unset xlabel; unset ylabel; unset border; unset tics; unset grid\n"
                "unset logscale; set xrange [0:1]; set yrange [0:1]\n"
                "set key center center horizontal Left reverse samplen 2.5 maxcols {}\nplot NaN "
                "notitle",
                legend_columns);
  for (const Curve& curve : named) {
    script += fmt::format(", NaN {} title {}", LooksOf(curve), Quoted(curve.name));
  }
  return {title, script + "\n"};
}

Chart HeatMap(const std::string& title, const std::vector<HeatPanel>& panels,
              const std::string& legend) {
  SHOAL_CHECK(!panels.empty());
  Canvas canvas;
  size_t rows = 0;
  for (const HeatPanel& panel : panels) {
    canvas.width += WidthOf(panel);
    rows = std::max(rows, panel.rows.size());
  }
  const double legend_top = kTop + kAbove + kCellHeight * static_cast<double>(rows) + kBelow;
  canvas.height = legend_top + kColourLegend;
  std::string script =
      canvas.Head(title) +
      fmt::format(
          "set tics scale 0\nset palette defined (0 '#ca4d30', 1 '#ffffff', 2 '#2c71b6')\n"
          "set cbrange [{0}:{1}]; set cbtics ({0}, 1, {1}); set cblabel {2} offset 0,0.6\n"
          "set colorbox horizontal user origin {3:.4f},{4:.4f} size {5:.4f},{6:.4f}\n"
          "unset border\n",
          1 - kColourRange, 1 + kColourRange, Quoted(legend), 44 / canvas.width,
          1 - (legend_top + 16) / canvas.height, 240 / canvas.width, 12 / canvas.height);
  double left = 0;
  for (const HeatPanel& panel : panels) {
    const double bottom = kTop + kAbove + kCellHeight * static_cast<double>(panel.rows.size());
    script +=
        canvas.Frame(left + LeftOf(panel), kTop + kAbove, left + WidthOf(panel) - kRight, bottom) +
        ScriptOf(panel) + "unset colorbox\n";
    left += WidthOf(panel);
  }
  return {title, std::move(script)};
}

absl::StatusOr<std::string> RenderSvg(const Chart& chart) {
  if (!ProgramExists("gnuplot")) {
    return NotFound("no pictures: gnuplot is not there (apt-get install gnuplot-nox)");
  }
  SHOAL_ASSIGN_OR_RETURN(
      const std::string svg,
      RunCommand({.name = "gnuplot", .arguments = {"gnuplot", "-d"}, .input = chart.script},
                 kPatience));
  const std::string title =
      absl::StrReplaceAll(chart.title, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
  return absl::StrReplaceAll(svg, {{"<title>Gnuplot</title>", "<title>" + title + "</title>"}});
}

}  // namespace shoal::chart

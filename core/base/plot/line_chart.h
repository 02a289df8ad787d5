// Line charts over a few named places on the x axis (1, 2, 4, ... devices), several panels side by
// side with one legend: the same series in each.
#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace shoal::plot {

inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

struct Series {
  std::string name;
  std::string colour;  // "#0072b2"
  bool dashed = false;
  double width = 2;  // a wide line shows beneath a narrow one
};

struct LinePanel {
  std::string title;
  std::string x_label;
  std::string y_label;                // with its unit
  std::vector<std::string> x_places;  // evenly spaced
  // [series][place]; kMissing leaves a gap.
  std::vector<std::vector<double>> lines;
  // The same where something else was measured; drawn as rings. May be empty.
  std::vector<std::vector<double>> rings;
  double reference = kMissing;  // a horizontal line
  bool from_zero = false;       // the y axis begins at 0
  // The y axis goes by powers of ten; values and the reference are positive, and from_zero is not
  // for it.
  bool powers_of_ten = false;
};

// Steps of 1, 2 or 5 times a power of ten that cover the values, five or so of them.
std::vector<double> TicksFor(double low, double high);
// Powers of ten that cover the values, two at least.
std::vector<double> PowersOfTenFor(double low, double high);

// `ring_legend` says what rings are, where there are any.
std::string RenderLineChart(const std::string& title, const std::vector<Series>& series,
                            const std::vector<LinePanel>& panels, const std::string& ring_legend);

}  // namespace shoal::plot

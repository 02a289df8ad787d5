// Line charts over a few named places on the x axis (1, 2, 4, ... devices): several panels in a row
// with one legend and the same series in each.
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
  std::string y_label;                // including its unit
  std::vector<std::string> x_places;  // evenly spaced
  // [series][place]; kMissing leaves a gap.
  std::vector<std::vector<double>> lines;
  // Same as above for values measured another way; drawn as rings. May be empty.
  std::vector<std::vector<double>> rings;
  double reference = kMissing;  // a horizontal line
  bool from_zero = false;       // the y axis begins at 0
  // Makes the y axis go by powers of ten; values and the reference must be positive, and from_zero
  // must be off.
  bool powers_of_ten = false;
};

// Returns about five steps of 1, 2 or 5 times a power of ten that cover the values.
std::vector<double> TicksFor(double low, double high);
// Returns at least two powers of ten that cover the values.
std::vector<double> PowersOfTenFor(double low, double high);

// `ring_legend` says what rings mean, if there are any.
std::string RenderLineChart(const std::string& title, const std::vector<Series>& series,
                            const std::vector<LinePanel>& panels, const std::string& ring_legend);

}  // namespace shoal::plot

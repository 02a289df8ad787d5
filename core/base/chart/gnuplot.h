// Charts as SVG, by gnuplot (Debian's gnuplot-nox) in a child process: a chart is its script with
// the data, made by pure functions. Panels are two to a row, with one legend below.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace shoal::chart {

struct Curve {
  // Lines have a dot at each point.
  enum class Style { kLine, kDashes, kRings, kMarks };

  // For the legend, where each name appears once; empty: not there. Without points: only there.
  std::string name;
  std::string colour;  // "#0072b2"
  Style style = Style::kLine;
  double width = 2;  // of lines and marks: a wide one shows below a narrow one
  int shape = 0;     // of marks: six, then repeated
  // x and y; skips values that are not finite, and the line continues at the next.
  std::vector<std::pair<double, double>> points = {};
};

struct Panel {
  std::string title;
  std::string x_label;
  std::string y_label;                     // with its unit
  std::vector<std::string> x_places = {};  // names of x = 0, 1, ...; empty: x is a number
  std::vector<Curve> curves = {};          // later ones above earlier ones
  bool from_zero = false;                  // the y axis begins at 0
  bool log_x = false;                      // powers of ten; values are positive
  bool log_y = false;
};

// A table of ratios in colours: blue above 1, red below, white at 1, with the number in each cell.
struct HeatPanel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<std::string> columns;
  std::vector<std::string> rows;            // from the top
  std::vector<std::vector<double>> values;  // [row][column]; a NaN leaves the cell empty
};

struct Chart {
  std::string title;
  std::string script;
};
Chart LineChart(const std::string& title, const std::vector<Panel>& panels);
// `legend` explains values below and above 1.
Chart HeatMap(const std::string& title, const std::vector<HeatPanel>& panels,
              const std::string& legend);

// Returns the SVG document. NotFound, with the package to install, without gnuplot.
absl::StatusOr<std::string> RenderSvg(const Chart& chart);

}  // namespace shoal::chart

// Tables of ratios in colours: blue above 1, red below, white at 1, with the number in each cell.
#pragma once

#include <string>
#include <vector>

namespace shoal::plot {

struct HeatPanel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<std::string> columns;
  std::vector<std::string> rows;            // from the top
  std::vector<std::vector<double>> values;  // [row][column]; a NaN leaves the cell empty
};

// Returns "#rrggbb" for a ratio; the strongest colours are at 1 - range and 1 + range.
std::string RatioColour(double ratio, double range);

std::string RenderHeatMap(const std::string& title, const std::vector<HeatPanel>& panels);

}  // namespace shoal::plot

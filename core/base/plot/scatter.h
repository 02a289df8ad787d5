// Named points over two measures, and the front of those that none beats in both.
#pragma once

#include <string>
#include <vector>

namespace shoal::plot {

struct ScatterPoint {
  std::string name;  // drawn next to it
  double x = 0;
  double y = 0;
  std::string colour;
};

struct ScatterPanel {
  std::string title;
  std::string x_label;  // including its unit; less is better
  std::string y_label;  // more is better
  std::vector<ScatterPoint> points;
};

// Returns the points that no other beats: none has less x and at least as much y, or as little x
// and more y. Indices sorted by x.
std::vector<size_t> ParetoFront(const std::vector<ScatterPoint>& points);

std::string RenderScatter(const std::string& title, const std::vector<ScatterPanel>& panels);

}  // namespace shoal::plot

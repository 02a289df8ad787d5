#include "bench/on_demand/break_even.h"

#include <algorithm>

#include "bench/on_demand/method.h"
#include "bench/on_demand/simulated.h"
#include "core/base/status.h"

namespace shoal::bench {
namespace {

struct Layout {
  int64_t nodes = 1;
  int64_t devices_per_node = 8;
  plan::Gathers gathers = plan::Gathers::kFlat;

  std::string Name() const {
    if (devices_per_node == 1) {
      return fmt::format("{} nodes of 1 device", nodes);
    }
    return fmt::format("{} nodes of {} devices, {}", nodes, devices_per_node,
                       gathers == plan::Gathers::kFlat ? "each fetches for itself" : "node cache");
  }
};

absl::StatusOr<double> SpeedUpAt(const Layout& layout, plan::ClusterSpec cluster, int64_t length,
                                 double rate, int64_t steps) {
  Config config;
  config.longest = length;
  config.devices = layout.nodes * layout.devices_per_node;
  cluster.devices_per_node = layout.devices_per_node;
  cluster.node_link.bytes_per_second = rate / 8;
  cluster.gathers = layout.gathers;
  const sim::Simulator simulator(OptionsFor(config, cluster));
  SHOAL_ASSIGN_OR_RETURN(const Steps drawn, DrawSteps(config, steps));
  SHOAL_ASSIGN_OR_RETURN(const sim::ChoiceSummary on_demand,
                         sim::Summarize(simulator, kLbMini, FromSteps(drawn), steps));
  SHOAL_ASSIGN_OR_RETURN(const sim::ChoiceSummary baseline,
                         sim::Summarize(simulator, sim::kBaseline, FromSteps(drawn), steps));
  return sim::SpeedUp(on_demand, baseline);
}

}  // namespace

double BreakEvenMap::lowest() const {
  double lowest = speed_up.front().front();
  for (const auto& row : speed_up) {
    lowest = std::min(lowest, *std::min_element(row.begin(), row.end()));
  }
  return lowest;
}

absl::StatusOr<std::vector<BreakEvenMap>> FindBreakEven(const plan::ClusterSpec& cluster,
                                                        int64_t steps) {
  using plan::Gathers;
  const Layout layouts[] = {{2, 8, Gathers::kFlat},
                            {2, 8, Gathers::kNodeCached},
                            {4, 8, Gathers::kFlat},
                            {4, 8, Gathers::kNodeCached},
                            {8, 1, Gathers::kFlat}};
  std::vector<BreakEvenMap> maps;
  for (const Layout& layout : layouts) {
    BreakEvenMap map{.name = layout.Name(),
                     .layout = fmt::format("{}-nodes-of-{}", layout.nodes, layout.devices_per_node),
                     .rates = {10e9, 25e9, 50e9, 100e9, 200e9, 400e9, 800e9, 1600e9, 3200e9},
                     .lengths = {131072, 65536, 32768, 16384, 8192, 4096, 2048}};
    for (const int64_t length : map.lengths) {
      std::vector<double>& row = map.speed_up.emplace_back();
      for (const double rate : map.rates) {
        SHOAL_ASSIGN_OR_RETURN(row.emplace_back(), SpeedUpAt(layout, cluster, length, rate, steps));
      }
    }
    maps.push_back(std::move(map));
  }
  return maps;
}

}  // namespace shoal::bench

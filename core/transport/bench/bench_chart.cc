#include "core/transport/bench/bench_chart.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "fmt/format.h"

namespace shoal::transport {
namespace {

// Of lines in the order of their first points. Told apart by people who do not see all colours.
constexpr std::array<std::string_view, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#7f7f7f", "#000000"};

// "64 KiB": whole sizes need no fraction.
std::string SizeText(int64_t bytes) {
  std::string text = FormatBytes(bytes);
  if (const size_t fraction = text.find(".0 "); fraction != std::string::npos) {
    text.erase(fraction, 2);
  }
  return text;
}

// The curve of that name, which is made if there is none.
std::vector<std::pair<double, double>>& PointsOf(const std::string& name, bool limit,
                                                 chart::Panel& panel) {
  std::vector<chart::Curve>& curves = panel.curves;
  auto found = std::ranges::find(curves, name, &chart::Curve::name);
  if (found == curves.end()) {
    curves.push_back({.name = name,
                      .colour = std::string(kColours[curves.size() % kColours.size()]),
                      .style = limit ? chart::Curve::Style::kDashes : chart::Curve::Style::kLine,
                      .width = limit ? 1.5 : 3.0});
    found = curves.end() - 1;
  }
  return found->points;
}

}  // namespace

chart::Chart ChartOf(const BenchReport& report) {
  int clients = std::numeric_limits<int>::max();
  std::set<int64_t> sizes;
  std::vector<std::string> operations;
  for (const BenchPoint& point : report.points) {
    clients = std::min(clients, point.clients);
    sizes.insert(point.bytes);
    if (std::ranges::find(operations, point.operation) == operations.end()) {
      operations.push_back(point.operation);
    }
  }
  std::vector<std::string> places;
  std::ranges::transform(sizes, std::back_inserter(places), SizeText);
  std::vector<chart::Panel> panels;
  for (const std::string& operation : operations) {
    chart::Panel bandwidth{.title = fmt::format("{}: bandwidth", operation),
                           .x_label = "size of one operation",
                           .y_label = "GB/s",
                           .x_places = places,
                           .from_zero = true};
    chart::Panel latency{.title = fmt::format("{}: latency, one at a time", operation),
                         .x_label = "size of one operation",
                         .y_label = "us",
                         .x_places = places,
                         .log_y = true};
    for (const BenchPoint& point : report.points) {
      if (point.operation != operation || point.clients != clients) {
        continue;
      }
      const auto place = static_cast<double>(std::distance(sizes.begin(), sizes.find(point.bytes)));
      const auto add = [&](const std::string& name, bool limit, double speed, double seconds) {
        PointsOf(name, limit, bandwidth).emplace_back(place, speed * 1e-9);
        PointsOf(name, limit, latency).emplace_back(place, seconds * 1e6);
      };
      add(point.transport, false, point.bytes_per_second, point.latency_seconds);
      if (!point.limit.empty()) {
        add(fmt::format("{}, the limit of {}", point.limit, point.transport), true,
            point.limit_bytes_per_second, point.limit_latency_seconds);
      }
    }
    panels.push_back(std::move(bandwidth));
    panels.push_back(std::move(latency));
  }
  return chart::LineChart(fmt::format("Transports beside the machine's own limits, {} client{}",
                                      clients, clients == 1 ? "" : "s"),
                          panels);
}

}  // namespace shoal::transport

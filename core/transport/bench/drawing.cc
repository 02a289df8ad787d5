#include "core/transport/bench/drawing.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/plot/line_chart.h"
#include "fmt/format.h"

namespace shoal::transport {
namespace {

// Of lines in the order of their first points. Told apart by people who do not see all colours.
constexpr std::array<std::string_view, 8> kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                      "#e69f00", "#56b4e9", "#7f7f7f", "#000000"};

struct Sample {
  std::string line;
  bool ours = true;
  std::string operation;
  int64_t bytes = 0;
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

// "64 KiB": whole sizes need no fraction.
std::string SizeText(int64_t bytes) {
  std::string text = FormatBytes(bytes);
  if (const size_t fraction = text.find(".0 "); fraction != std::string::npos) {
    text.erase(fraction, 2);
  }
  return text;
}

// The place of `value` in `values`, where it goes last if it is new.
template <typename Value>
size_t PlaceIn(std::vector<Value>& values, const Value& value) {
  const auto found = std::ranges::find(values, value);
  const auto place = static_cast<size_t>(found - values.begin());
  if (found == values.end()) {
    values.push_back(value);
  }
  return place;
}

std::string Draw(const std::string& title, const std::vector<Sample>& samples) {
  std::vector<std::string> lines;
  std::vector<plot::Series> series;
  std::vector<std::string> operations;
  std::set<int64_t> sizes;
  for (const Sample& sample : samples) {
    if (PlaceIn(lines, sample.line) == series.size()) {
      series.push_back({.name = sample.line,
                        .colour = std::string(kColours[series.size() % kColours.size()]),
                        .dashed = !sample.ours,
                        .width = sample.ours ? 3.0 : 1.5});
    }
    PlaceIn(operations, sample.operation);
    sizes.insert(sample.bytes);
  }
  std::vector<std::string> places;
  for (const int64_t size : sizes) {
    places.push_back(SizeText(size));
  }
  std::vector<plot::LinePanel> panels;
  for (const std::string& operation : operations) {
    const std::vector<std::vector<double>> empty(lines.size(),
                                                 std::vector<double>(sizes.size(), plot::kMissing));
    plot::LinePanel bandwidth{.title = fmt::format("{}: bandwidth", operation),
                              .x_label = "size of one operation",
                              .y_label = "GB/s",
                              .x_places = places,
                              .lines = empty,
                              .from_zero = true};
    plot::LinePanel latency{.title = fmt::format("{}: latency, one at a time", operation),
                            .x_label = "size of one operation",
                            .y_label = "us",
                            .x_places = places,
                            .lines = empty,
                            .powers_of_ten = true};
    for (const Sample& sample : samples) {
      if (sample.operation == operation) {
        const size_t line = PlaceIn(lines, sample.line);
        const auto place =
            static_cast<size_t>(std::distance(sizes.begin(), sizes.find(sample.bytes)));
        bandwidth.lines[line][place] = sample.bytes_per_second * 1e-9;
        latency.lines[line][place] = sample.latency_seconds * 1e6;
      }
    }
    panels.push_back(std::move(bandwidth));
    panels.push_back(std::move(latency));
  }
  return plot::RenderLineChart(title, series, panels, "");
}

}  // namespace

std::string DrawBench(const BenchReport& report) {
  int fewest = std::numeric_limits<int>::max();
  for (const BenchPoint& point : report.points) {
    fewest = std::min(fewest, point.clients);
  }
  std::vector<Sample> samples;
  for (const BenchPoint& point : report.points) {
    if (point.clients != fewest) {
      continue;
    }
    samples.push_back({point.transport, true, point.operation, point.bytes, point.bytes_per_second,
                       point.latency_seconds});
    if (!point.limit.empty()) {
      samples.push_back({fmt::format("{}, the limit of {}", point.limit, point.transport), false,
                         point.operation, point.bytes, point.limit_bytes_per_second,
                         point.limit_latency_seconds});
    }
  }
  return Draw(fmt::format("Transports beside the machine's own limits, {} client{}", fewest,
                          fewest == 1 ? "" : "s"),
              samples);
}

std::string DrawComparison(const ComparisonReport& report) {
  std::vector<Sample> samples;
  for (const ComparedPoint& point : report.points) {
    samples.push_back({fmt::format("Shoal over {}", point.transport), true, point.operation,
                       point.bytes, point.ours.bytes_per_second, point.ours.latency_seconds});
    samples.push_back({fmt::format("{} over {}", point.peer, point.transport), false,
                       point.operation, point.bytes, point.theirs.bytes_per_second,
                       point.theirs.latency_seconds});
  }
  return Draw("Transports beside other systems on one machine", samples);
}

}  // namespace shoal::transport

#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/on_demand/experiments.h"

namespace shoal::bench {
namespace {

// Leaves out speed-weighted: same as lb-mini if all devices have one speed.
std::vector<Method> Charted() {
  std::vector<Method> methods(kMethods.begin(), kMethods.end());
  std::erase_if(methods, [](const Method& method) { return !method.in_grid; });
  return methods;
}

constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();

struct Value {
  double speed_up = kMissing;
  double idle_percent = kMissing;
};

Value SimulatedValue(const Results& results, const Config& config, const Method& method) {
  const SimulatedConfig* const simulated = results.Simulated(config);
  return simulated == nullptr ? Value()
                              : Value{simulated->SpeedUp(method.choice),
                                      100 * simulated->Of(method.choice).idle_share};
}

Value EmulatedValue(const Results& results, const Config& config, const Method& method) {
  const EmulatedConfig* const emulated = results.Emulated(config);
  const EmulatedMethod* const run = emulated == nullptr ? nullptr : emulated->Of(method.choice);
  return run == nullptr ? Value() : Value{emulated->SpeedUp(method.choice), 100 * run->idle_share};
}

// Adds a line of simulated values and rings of emulated ones.
void AddCurves(const Results& results, const Sweep& sweep, const Method& method,
               double Value::*figure, chart::Panel& panel) {
  using Style = chart::Curve::Style;
  chart::Curve line{.name = method.Name(),
                    .colour = method.colour,
                    .style = method.dashed ? Style::kDashes : Style::kLine,
                    .width = method.width};
  chart::Curve rings{.colour = method.colour, .style = Style::kRings};
  for (size_t i = 0; i < sweep.configs.size(); ++i) {
    const auto x = static_cast<double>(i);
    line.points.emplace_back(x, SimulatedValue(results, sweep.configs[i], method).*figure);
    rings.points.emplace_back(x, EmulatedValue(results, sweep.configs[i], method).*figure);
  }
  panel.curves.push_back(std::move(line));
  panel.curves.push_back(std::move(rings));
}

chart::Chart SweepChart(const Results& results, const Sweep& sweep) {
  chart::Panel speed_up{.title = "Speed-up",
                        .x_label = sweep.parameter,
                        .y_label = "times the baseline's throughput",
                        .x_places = sweep.places};
  chart::Panel idle{.title = "Idle share",
                    .x_label = sweep.parameter,
                    .y_label = "% of all devices' time",
                    .x_places = sweep.places,
                    .from_zero = true};
  for (const Method& method : Charted()) {
    AddCurves(results, sweep, method, &Value::speed_up, speed_up);
    AddCurves(results, sweep, method, &Value::idle_percent, idle);
  }
  if (!results.emulated.empty()) {
    idle.curves.push_back({.name = "rings: emulated; lines: simulated",
                           .colour = "#57606a",
                           .style = chart::Curve::Style::kRings});
  }
  return chart::LineChart(fmt::format("By {}", sweep.parameter), {speed_up, idle});
}

std::string Cell(const Value& value) {
  return fmt::format("{}, {}", Ratio(value.speed_up), Percent(value.idle_percent / 100));
}

void AddTable(const Results& results, const std::string& first_column,
              const std::vector<std::string>& names, const std::vector<Config>& configs,
              Report& report) {
  std::vector<std::vector<std::string>> rows = {{first_column}};
  for (const Method& method : kMethods) {
    rows[0].push_back(method.Name());
  }
  for (size_t i = 0; i < configs.size(); ++i) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(names[i]);
    for (const Method& method : kMethods) {
      const Value simulated = SimulatedValue(results, configs[i], method);
      const Value emulated = EmulatedValue(results, configs[i], method);
      std::string cell = std::isfinite(simulated.speed_up) ? Cell(simulated) : "";
      if (std::isfinite(emulated.speed_up)) {
        cell += (cell.empty() ? "" : "<br>") + ("emulated " + Cell(emulated));
      }
      row.push_back(cell);
    }
  }
  report.Table(rows);
}

// Returns the index of `name`; appends it if it is not there.
size_t PlaceOf(const std::string& name, std::vector<std::string>& names) {
  const auto found = std::find(names.begin(), names.end(), name);
  const auto place = static_cast<size_t>(found - names.begin());
  if (found == names.end()) {
    names.push_back(name);
  }
  return place;
}

// Rows are shapes, columns datasets by samples per device.
chart::HeatPanel ShapePanel(const Results& results, const Method& method) {
  chart::HeatPanel panel{.title = method.Name(), .x_label = "dataset x samples per device"};
  for (const Config& config : ShapeConfigs()) {
    const size_t row = PlaceOf(fmt::format("{} on {}", config.shape, config.devices), panel.rows);
    const size_t column =
        PlaceOf(fmt::format("{} x {}", config.dataset, config.samples_per_device), panel.columns);
    panel.values.resize(panel.rows.size());
    panel.values[row].resize(std::max(panel.values[row].size(), column + 1), kMissing);
    panel.values[row][column] = SimulatedValue(results, config, method).speed_up;
  }
  return panel;
}

chart::Chart ShapeChart(const Results& results) {
  std::vector<chart::HeatPanel> panels;
  for (const Method& method : kMethods) {
    if (method.choice.synchronization == plan::Synchronization::kStep &&
        (method.choice.assignment == plan::Assignment::kLbMicro ||
         method.choice.assignment == plan::Assignment::kLbMini)) {
      panels.push_back(ShapePanel(results, method));
    }
  }
  return chart::HeatMap("Simulated speed-up over the baseline: datasets and models", panels,
                        kHeatLegend);
}

std::string ShapeName(const Config& config) {
  return fmt::format("{}, {}, {} each on {}", config.dataset, config.shape,
                     config.samples_per_device, config.devices);
}

}  // namespace

void AddSweeps(const Results& results, Report& report) {
  if (results.simulated.empty() && results.emulated.empty()) {
    return;
  }
  report.Heading("One parameter at a time");
  report.Paragraph(
      "Around the golden config. Each cell: speed-up over the baseline, idle share. Without a "
      "word, simulated on the cluster named above, communication included; \"emulated\": on "
      "emulated devices, where communication is this machine's.");
  for (const Sweep& sweep : ParameterSweeps()) {
    report.Chart(sweep.file, fmt::format("speed-up and idle share by {}", sweep.parameter),
                 SweepChart(results, sweep));
    AddTable(results, sweep.parameter, sweep.places, sweep.configs, report);
  }
}

void AddShapes(const Results& results, Report& report) {
  if (results.simulated.empty() && results.emulated.empty()) {
    return;
  }
  const std::vector<Config> configs = ShapeConfigs();
  std::vector<std::string> names;
  std::transform(configs.begin(), configs.end(), std::back_inserter(names), ShapeName);
  report.Heading("Datasets and models");
  report.Paragraph(
      "Each shape on the paper's number of devices, with 2 and 4 samples on each. Cells as above.");
  if (!results.simulated.empty()) {
    report.Chart("shapes", "simulated speed-up by dataset, shape and samples per device",
                 ShapeChart(results));
  }
  AddTable(results, "dataset, shape, samples on devices", names, configs, report);
}

}  // namespace shoal::bench

#include <algorithm>
#include <cmath>

#include "bench/on_demand/experiments.h"
#include "bench/on_demand/method.h"

namespace shoal::bench {
namespace {

constexpr double kLargestDifference = 0.05;
constexpr double kLargestIdleDifference = 0.02;
constexpr double kGoldenSpeedUp = 1.26;
// Two runs of one method differ by about this.
constexpr double kNoise = 0.005;
constexpr double kNearIdeal = 1.05;

constexpr sim::Choice kDynamic = {plan::Synchronization::kStep, plan::Assignment::kDynamic};

// Keeps the largest difference and where it was.
struct Worst {
  double difference = 0;
  std::string where = "nothing was run";

  void Consider(double candidate, const EmulatedConfig& config, const EmulatedMethod& method) {
    if (std::abs(candidate) >= std::abs(difference)) {
      difference = candidate;
      where = fmt::format("{}: {}", config.config.Name(), method.method.Name());
    }
  }
};

std::vector<std::string> RowOf(const EmulatedConfig& config, const EmulatedMethod& run) {
  return {config.config.Name(),
          run.method.Name(),
          fmt::format("{:.3f}", run.mean_measured()),
          fmt::format("{:.3f}", run.mean_simulated()),
          Difference(run.difference()),
          Percent(run.idle_share),
          Percent(run.predicted_idle_share),
          Percent(run.simulated_idle_share)};
}

void AddGoldenBars(const EmulatedConfig& golden, Report& report) {
  const double lb_mini = golden.SpeedUp(kLbMini);
  const double dynamic = golden.SpeedUp(kDynamic);
  report.Bar("golden, emulated: lb-mini on demand over lb-micro with layer", "at least 1.26",
             fmt::format("{:.3f}", lb_mini), lb_mini >= kGoldenSpeedUp);
  report.Bar("golden, emulated: dynamic over lb-mini, both on demand",
             fmt::format("at least 1, within the noise of {}", Percent(kNoise)),
             fmt::format("{:.3f}", dynamic / lb_mini), dynamic / lb_mini >= 1 - kNoise);
}

void AddSlowDeviceBars(const EmulatedConfig& slow, Report& report) {
  for (const EmulatedMethod& run : slow.methods) {
    const bool knows_speeds = run.method.choice.assignment == plan::Assignment::kSpeedWeighted ||
                              run.method.choice.assignment == plan::Assignment::kDynamic;
    const double ratio = run.mean_measured() / slow.ideal_seconds;
    report.Bar(fmt::format("one device at half speed, emulated: {}", run.method.Name()),
               knows_speeds ? "at most 1.05 of sum of work / sum of speeds" : "above that",
               fmt::format("{:.3f}", ratio), (ratio <= kNearIdeal) == knows_speeds);
  }
}

void AddRows(const EmulatedConfig& config, const std::string& what, Report& report) {
  report.Paragraph(fmt::format("{} ({}), emulated:", what, config.config.Name()));
  std::vector<std::vector<std::string>> rows = {{"method", "emulated seconds a step", "speed-up",
                                                 "over sum of work / sum of speeds", "idle share",
                                                 "predicted"}};
  for (const EmulatedMethod& run : config.methods) {
    rows.push_back({run.method.Name(), fmt::format("{:.3f}", run.mean_measured()),
                    Ratio(config.SpeedUp(run.method.choice)),
                    Ratio(run.mean_measured() / config.ideal_seconds), Percent(run.idle_share),
                    Percent(run.predicted_idle_share)});
  }
  report.Table(rows);
}

}  // namespace

const SimulatedConfig* Results::Simulated(const Config& config) const {
  const auto found = std::ranges::find(simulated, config, &SimulatedConfig::config);
  return found == simulated.end() ? nullptr : &*found;
}

const EmulatedConfig* Results::Emulated(const Config& config) const {
  const auto found = std::ranges::find(emulated, config, &EmulatedConfig::config);
  return found == emulated.end() ? nullptr : &*found;
}

void AddGolden(const Results& results, Report& report) {
  const EmulatedConfig* const golden = results.Emulated(Config());
  const EmulatedConfig* const slow = results.Emulated(SlowDeviceConfig());
  if (golden == nullptr && slow == nullptr) {
    return;
  }
  report.Heading("The golden config, and a slow device");
  if (golden != nullptr) {
    AddGoldenBars(*golden, report);
    AddRows(*golden, "The golden config", report);
  }
  if (slow != nullptr) {
    AddSlowDeviceBars(*slow, report);
    AddRows(*slow, "A slow device", report);
  }
}

void AddAgreement(const Results& results, Report& report) {
  if (results.emulated.empty()) {
    return;
  }
  report.Heading("Emulated beside simulated");
  report.Paragraph(
      "The same minibatches in both; the simulator's communication takes no time, the emulated "
      "devices' is real messages between processes of this machine. Times are emulated seconds, "
      "means over the steps that count; the difference is of the median step. Idle shares: "
      "measured, as the coordinator's planner predicted it before each step, and simulated.");
  std::vector<std::vector<std::string>> rows = {{"config", "method", "emulated s", "simulated s",
                                                 "difference", "idle", "predicted", "simulated"}};
  Worst time;
  Worst idle;
  for (const EmulatedConfig& config : results.emulated) {
    for (const EmulatedMethod& run : config.methods) {
      rows.push_back(RowOf(config, run));
      time.Consider(run.difference(), config, run);
      idle.Consider(run.idle_share - run.predicted_idle_share, config, run);
    }
  }
  report.Table(rows);
  report.Bar("step time, emulated against simulated, whole grid", "within 5%",
             fmt::format("at most {} ({})", Difference(time.difference), time.where),
             std::abs(time.difference) <= kLargestDifference);
  report.Bar("idle share, measured against predicted, whole grid", "under 2 points apart",
             fmt::format("at most {:+.1f} points ({})", 100 * idle.difference, idle.where),
             std::abs(idle.difference) < kLargestIdleDifference);
}

}  // namespace shoal::bench

#include <algorithm>
#include <cmath>

#include "bench/on_demand/experiments.h"
#include "bench/on_demand/paper.h"

namespace shoal::bench {
namespace {

// Smaller differences from the paper need no reason: it gives no spread, most are read off charts.
constexpr double kAlike = 0.04;

double EmulatedRatio(const EmulatedConfig* config, const PaperFigure& figure) {
  const bool has_both = config != nullptr && config->Of(figure.choice) != nullptr &&
                        config->Of(figure.baseline) != nullptr;
  return has_both ? config->Of(figure.baseline)->mean_measured() /
                        config->Of(figure.choice)->mean_measured()
                  : std::nan("");
}

std::string Why(double ours, double theirs, const std::string& because) {
  return std::abs(ours - theirs) <= kAlike ? "alike" : because;
}

void AddSpeedUps(const Results& results, Report& report) {
  std::vector<std::vector<std::string>> rows = {
      {"paper", "config", "of", "over", "paper's (second-hand)", "simulated", "emulated", "why"}};
  for (const PaperFigure& figure : SpeedUpsOfPaper()) {
    const SimulatedConfig* const simulated = results.Simulated(figure.config);
    if (simulated == nullptr) {
      continue;
    }
    const double ours = sim::SpeedUp(simulated->Of(figure.choice), simulated->Of(figure.baseline));
    rows.push_back({figure.source, figure.config.Name(), NameOf(figure.choice),
                    NameOf(figure.baseline), Ratio(figure.ratio), Ratio(ours),
                    Ratio(EmulatedRatio(results.Emulated(figure.config), figure)),
                    Why(ours, figure.ratio, figure.because)});
  }
  report.Table(rows);
}

void AddBubbles(const Results& results, Report& report) {
  std::vector<std::vector<std::string>> rows = {
      {"paper", "config", "of", "paper's (second-hand)", "simulated", "why"}};
  for (const PaperBubble& bubble : BubblesOfPaper()) {
    const SimulatedConfig* const simulated = results.Simulated(bubble.config);
    if (simulated == nullptr) {
      continue;
    }
    const double ours = simulated->Of(bubble.choice).idle_share;
    rows.push_back({bubble.source, bubble.config.Name(), NameOf(bubble.choice),
                    Percent(bubble.idle_share), Percent(ours),
                    Why(ours, bubble.idle_share, bubble.because)});
  }
  report.Paragraph("Idle shares:");
  report.Table(rows);
}

chart::HeatPanel PanelOf(const BreakEvenMap& map) {
  chart::HeatPanel panel{.title = map.name,
                         .x_label = "link of a node, Gb/s each way",
                         .y_label = "maximum length",
                         .values = map.speed_up};
  for (const double rate : map.rates) {
    panel.columns.push_back(fmt::format("{:g}", rate / 1e9));
  }
  for (const int64_t length : map.lengths) {
    panel.rows.push_back(InThousands(length));
  }
  return panel;
}

}  // namespace

void AddPaper(const Results& results, Report& report) {
  if (results.simulated.empty()) {
    return;
  }
  report.Heading("Beside the paper's figures");
  report.Paragraph(
      "Speed-ups of throughput. The paper (arXiv 2601.19362) measured on A100s; most of its "
      "numbers are known second-hand, read off its charts, and come without a spread. Lengths here "
      "are "
      "lognormal fits to the means it gives.");
  AddSpeedUps(results, report);
  AddBubbles(results, report);
  report.Paragraph(
      "AMD's port (Primus, MI300X; on which lengths is not known here) against aligned RCCL "
      "collectives, beside simulated on-demand lb-mini. Where it loses, transfers between nodes "
      "took three times as long as within one: slow links are in the next part. Across nodes it "
      "also added gradients up on each device and reduced them once a step, and gained less.");
  std::vector<std::vector<std::string>> rows = {{"config", "AMD (second-hand)", "simulated"}};
  for (const AmdRatio& amd : AmdRatios()) {
    const SimulatedConfig* const simulated = results.Simulated(amd.config);
    if (simulated != nullptr) {
      rows.push_back({amd.config.Name(), Ratio(amd.ratio), Ratio(simulated->SpeedUp(kLbMini))});
    }
  }
  report.Table(rows);
}

void AddBreakEven(const Results& results, Report& report) {
  if (results.break_even.empty()) {
    return;
  }
  report.Heading("Where on demand loses");
  report.Paragraph(
      "Simulated: on-demand lb-mini over the baseline's hierarchical collectives, 1.5B, longalign "
      "scaled to the maximum length, 4 samples on each device. Below 1 the flat gets and pushes of "
      "a node's devices cost more than balance wins. An independent port measured 0.80 to 0.91 at "
      "its worst. With one device in a node both ways move the same bytes.");
  // A layout's maps share a chart.
  for (size_t i = 0; i < results.break_even.size();) {
    const std::string layout = results.break_even[i].layout;
    std::vector<chart::HeatPanel> panels;
    for (; i < results.break_even.size() && results.break_even[i].layout == layout; ++i) {
      panels.push_back(PanelOf(results.break_even[i]));
    }
    report.Chart(
        "break-even-" + layout, "simulated speed-up by link rate and length, " + layout,
        chart::HeatMap("Simulated: on-demand lb-mini over the baseline", panels, kHeatLegend));
  }
  std::vector<std::vector<std::string>> rows = {
      {"cluster", "lowest", "slowest link at which it does not lose, by maximum length"}};
  for (const BreakEvenMap& map : results.break_even) {
    std::string text;
    for (size_t r = 0; r < map.lengths.size(); ++r) {
      // Walks from the fastest link down while nothing is lost.
      size_t first = map.rates.size();
      while (first > 0 && map.speed_up[r][first - 1] >= 1) {
        --first;
      }
      text +=
          fmt::format("{}{}: {}", r == 0 ? "" : ", ", InThousands(map.lengths[r]),
                      first == map.rates.size() ? "none of these"
                                                : fmt::format("{:g} Gb/s", map.rates[first] / 1e9));
    }
    rows.push_back({map.name, Ratio(map.lowest()), text});
  }
  report.Table(rows);
}

void AddReal(const Results& results, Report& report) {
  if (results.real.empty()) {
    return;
  }
  report.Heading("Real compute");
  report.Paragraph(
      "stories260k on gsm8k-chats, 2 workers and 2 servers, computed on this machine's CPU; "
      "methods in turns, a step's time is the median of its rounds. Nothing here is emulated or "
      "simulated. "
      "All fetch weights for each use and push for each microbatch.");
  std::vector<std::vector<std::string>> rows = {
      {"samples a step", "method", "ms a step", "idle share", "best layer / this"}};
  for (const RealRun& run : results.real) {
    const RealMethod& layer = run.Best(plan::Synchronization::kLayer);
    const RealMethod& step = run.Best(plan::Synchronization::kStep);
    for (const RealMethod& method : run.methods) {
      rows.push_back({std::to_string(run.minibatch_samples), NameOf(method.choice),
                      fmt::format("{:.1f}", 1e3 * method.seconds), Percent(method.idle_share),
                      fmt::format("{:.3f}", layer.seconds / method.seconds)});
    }
    report.Bar(fmt::format("real compute, {} samples a step: on demand ({}) over layer ({})",
                           run.minibatch_samples, plan::Name(step.choice.assignment),
                           plan::Name(layer.choice.assignment)),
               "not slower", fmt::format("{:.3f}", layer.seconds / step.seconds),
               layer.seconds >= step.seconds);
  }
  report.Table(rows);
}

}  // namespace shoal::bench

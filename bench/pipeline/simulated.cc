#include "bench/pipeline/simulated.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "bench/pipeline/candidates.h"
#include "core/base/status.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

constexpr int kStages = 8;
constexpr int kChunks = 4;
constexpr int kMicrobatches = 32;
constexpr std::array<double, 2> kCopyRatios = {0.5, 1.0};
constexpr std::array<int, 5> kStageCounts = {2, 4, 8, 16, 32};

std::vector<std::string> RowOf(const Candidate& candidate, const std::string& copy_ratio) {
  int host = 0;
  for (const plan::StageTimes& stage : candidate.times.stages) {
    host = std::max(host, stage.peak_host_activations);
  }
  return {candidate.name,
          copy_ratio,
          fmt::format("{:.3f}", candidate.PeakShare()),
          std::to_string(candidate.times.PeakActivations()),
          std::to_string(host),
          Percent(candidate.Throughput())};
}

chart::Panel PanelOf(const std::string& title, const std::vector<Candidate>& candidates) {
  chart::Panel panel{.title = title,
                     .x_label = "peak of activations on a device, over the whole model's",
                     .y_label = "throughput, % of the ideal"};
  chart::Curve front{.name = "nothing is better in both",
                     .colour = "#57606a",
                     .style = chart::Curve::Style::kDashes,
                     .width = 1.5};
  for (const size_t index : ParetoFront(candidates)) {
    front.points.emplace_back(candidates[index].PeakShare(), 100 * candidates[index].Throughput());
  }
  panel.curves.push_back(std::move(front));
  std::map<std::string_view, int> of_colour;  // shapes tell those of one colour apart
  for (const Candidate& candidate : candidates) {
    const std::pair point = {candidate.PeakShare(), 100 * candidate.Throughput()};
    // Wider, to show beneath others at the same point.
    const auto above = std::count_if(&candidate + 1, candidates.data() + candidates.size(),
                                     [&](const Candidate& other) {
                                       return other.PeakShare() == candidate.PeakShare() &&
                                              other.Throughput() == candidate.Throughput();
                                     });
    panel.curves.push_back({.name = candidate.name,
                            .colour = std::string(candidate.colour),
                            .style = chart::Curve::Style::kMarks,
                            .width = 2 + 1.5 * static_cast<double>(above),
                            .shape = of_colour[candidate.colour]++,
                            .points = {point}});
  }
  return panel;
}

// GPipe's memory grows with the microbatches: beside it the others would look alike.
std::vector<Candidate> WithoutGPipe(std::vector<Candidate> candidates) {
  std::erase_if(candidates, [](const Candidate& candidate) { return candidate.name == "GPipe"; });
  return candidates;
}

}  // namespace

absl::Status AddParetoFront(Report& report) {
  report.Heading("Memory against throughput");
  report.Paragraph(fmt::format(
      "Simulated: {} stages, {} microbatches, {} chunks where a schedule takes any number (1F1B, "
      "GPipe and ZB-H one, V-shaped ones two); forward, backward for the input and for the weights "
      "take as long as each other, messages nothing. Throughput is by the whole step, from the "
      "first "
      "stage's begin to the last one's end. Peak: the largest of any stage, over the "
      "activations of the whole model for one microbatch. k: time to copy activations out and back "
      "over the time to compute with them.",
      kStages, kMicrobatches, kChunks));
  std::vector<std::vector<std::string>> rows = {
      {"schedule", "k", "peak / model", "peak, chunks", "on host, chunks", "throughput"}};
  SHOAL_ASSIGN_OR_RETURN(std::vector<Candidate> kept,
                         WithoutOffload(kStages, kChunks, kMicrobatches));
  for (const Candidate& candidate : kept) {
    rows.push_back(RowOf(candidate, "-"));
  }
  kept = WithoutGPipe(std::move(kept));
  std::vector<chart::Panel> panels;
  for (const double ratio : kCopyRatios) {
    SHOAL_ASSIGN_OR_RETURN(std::vector<Candidate> candidates,
                           WithOffload(kStages, kChunks, kMicrobatches, ratio));
    for (const Candidate& candidate : candidates) {
      rows.push_back(RowOf(candidate, fmt::format("{:g}", ratio)));
    }
    candidates.insert(candidates.begin(), kept.begin(), kept.end());
    panels.push_back(PanelOf(fmt::format("k = {:g}", ratio), candidates));
  }
  report.Chart("pareto", "memory against throughput of every schedule",
               chart::LineChart("Memory against throughput", panels));
  report.Table(rows);
  return absl::OkStatus();
}

absl::Status AddStagesCurve(Report& report) {
  report.Heading("Peak memory against stages");
  report.Paragraph(fmt::format(
      "Simulated, as above: a model of one size cut into more and more stages of {} chunks, with "
      "four times as many microbatches as stages. A point: the largest peak of any stage, over the "
      "activations of the whole model for one microbatch.",
      kChunks));
  using Style = chart::Curve::Style;
  const std::vector<chart::Curve> curves = {{.name = "1F1B", .colour = "#7f7f7f", .width = 6},
                                            {"interleaved 1F1B", "#d55e00"},
                                            {"GIS", "#0072b2"},
                                            {"GIS-H", "#0072b2", Style::kDashes},
                                            {"PO-H", "#009e73", Style::kDashes},
                                            {"PO-F", "#009e73"}};
  std::vector<chart::Panel> panels;
  std::vector<std::vector<std::string>> rows = {{"schedule", "k"}};
  for (const int stages : kStageCounts) {
    rows.front().push_back(fmt::format("{} stages", stages));
  }
  for (const double ratio : kCopyRatios) {
    chart::Panel panel{.title = fmt::format("k = {:g}", ratio),
                       .x_label = "stages",
                       .y_label = "peak / model",
                       .curves = curves,
                       .from_zero = true};
    for (const int stages : kStageCounts) {
      const auto place = static_cast<double>(panel.x_places.size());
      panel.x_places.push_back(std::to_string(stages));
      SHOAL_ASSIGN_OR_RETURN(const std::vector<Candidate> all,
                             AllCandidates(stages, kChunks, 4 * stages, ratio));
      for (chart::Curve& curve : panel.curves) {
        const auto found = std::ranges::find(all, curve.name, &Candidate::name);
        curve.points.emplace_back(place, found == all.end() ? std::nan("") : found->PeakShare());
      }
    }
    for (const chart::Curve& curve : panel.curves) {
      std::vector<std::string> row = {curve.name, fmt::format("{:g}", ratio)};
      for (const auto& [place, share] : curve.points) {
        row.push_back(fmt::format("{:.3f}", share));
      }
      rows.push_back(std::move(row));
    }
    panels.push_back(std::move(panel));
  }
  report.Chart("stages", "peak memory by number of stages",
               chart::LineChart("Peak memory against stages", panels));
  report.Table(rows);
  return absl::OkStatus();
}

}  // namespace shoal::bench

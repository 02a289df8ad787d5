#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "bench/pipeline/candidates.h"
#include "bench/pipeline/paper.h"
#include "core/base/status.h"
#include "core/plan/pipeline/offload_ratio.h"
#include "fmt/format.h"

namespace shoal::bench {
namespace {

constexpr double kPaperKvHeads = 8;

// What one layer keeps of a microbatch of one sequence, as the paper's figure counts it.
double LayerBytes(const PaperRow& row) {
  return plan::GptLayerBytes(plan::Recompute::kLight, kPaperKvHeads / row.heads) * row.sequence *
         row.hidden;
}

const Candidate& Find(const std::vector<Candidate>& candidates, std::string_view name) {
  return *std::ranges::find(candidates, name, &Candidate::name);
}

std::string CellText(const PaperCell& paper, const Candidate& candidate, const Candidate& baseline,
                     double model_bytes, const PaperCell& paper_base) {
  const double gigabytes = candidate.PeakShare() * model_bytes / 1e9;
  const double ratio = candidate.Throughput() / baseline.Throughput();
  if (paper.gigabytes == 0) {
    return fmt::format("{:.0f} GB, {:.2f}<br>paper: -", gigabytes, ratio);
  }
  const std::string paper_ratio =
      paper_base.utilisation == 0
          ? "-"
          : fmt::format("{:.2f}", static_cast<double>(paper.utilisation) / paper_base.utilisation);
  return fmt::format("{:.0f} GB, {:.2f}<br>paper: {} GB, {}", gigabytes, ratio, paper.gigabytes,
                     paper_ratio);
}

}  // namespace

void AddOffloadRatios(Report& report) {
  report.Heading("k");
  report.Paragraph(
      "The paper's layer (hidden size down, sequence across) on an A100 at 220 TFLOP/s and 15 "
      "GB/s: "
      "by the formula, then as the paper prints it.");
  std::vector<std::vector<std::string>> rows = {{"hidden"}};
  for (const int sequence : kPaperSequences) {
    rows.front().push_back(fmt::format("{}K", sequence / 1024));
  }
  double largest = 0;
  for (const PaperOffloadRatios& paper : OffloadRatiosOfPaper()) {
    std::vector<std::string> row = {std::to_string(paper.hidden)};
    for (size_t i = 0; i < kPaperSequences.size(); ++i) {
      const double ratio = plan::GptOffloadRatio(paper.hidden, kPaperSequences[i]);
      row.push_back(fmt::format("{:.2f} ({:.2f})", ratio, paper.ratios[i]));
      largest = std::max(largest, std::fabs(ratio / paper.ratios[i] - 1));
    }
    rows.push_back(std::move(row));
  }
  report.Table(rows);
  report.Bar("k by the formula against the paper's figure 1", "within 8%", Percent(largest),
             largest <= 0.08);
}

absl::Status AddPaperModels(Report& report) {
  report.Heading("The paper's models");
  report.Paragraph(
      "Simulated with the paper's number of stages and microbatches, a layer to a chunk (1F1B: all "
      "of a stage), layers alike, forward and both parts of the backward equally long, k by the "
      "formula; memory by 16 + 4 r bytes per token and hidden element. Each cell: peak of "
      "activations and throughput over GIS-H's; below, activation memory and model FLOP "
      "utilisation "
      "over GIS-H's as the paper measured them on A100s. Where the paper has no figure it ran out "
      "of memory or left it out.");
  std::vector<std::vector<std::string>> rows = {{"model, sequence, k"}};
  rows.front().insert(rows.front().end(), kPaperSchedules.begin(), kPaperSchedules.end());
  for (const PaperRow& paper : ScheduleRowsOfPaper()) {
    const int chunks = (paper.layers + 2) / paper.stages;
    const double ratio =
        plan::GptOffloadRatio(paper.hidden, paper.sequence, {}, kPaperKvHeads / paper.heads);
    SHOAL_ASSIGN_OR_RETURN(const std::vector<Candidate> all,
                           AllCandidates(paper.stages, chunks, paper.microbatches, ratio));
    const Candidate& baseline = Find(all, "GIS-H");
    const double model_bytes = LayerBytes(paper) * chunks * paper.stages;
    std::vector<std::string> row = {
        fmt::format("{}, {}K, {:.2f}", paper.model, paper.sequence / 1024, ratio)};
    for (size_t i = 0; i < kPaperSchedules.size(); ++i) {
      row.push_back(CellText(paper.cells[i], Find(all, kPaperSchedules[i]), baseline, model_bytes,
                             paper.cells[2]));
    }
    rows.push_back(std::move(row));
  }
  report.Table(rows);
  return absl::OkStatus();
}

}  // namespace shoal::bench

// What the PipeOffload paper (arXiv 2503.01328) reports, beside what we compute for the same
// machines and models.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "bench/report/report.h"

namespace shoal::bench {

inline constexpr std::array<int, 4> kPaperSequences = {4096, 8192, 16384, 32768};

// k on A100s, figure 1: by hidden size, for each of kPaperSequences.
struct PaperOffloadRatios {
  int hidden = 0;
  std::array<double, 4> ratios;
};
std::vector<PaperOffloadRatios> OffloadRatiosOfPaper();

// Figure 15: schedules in this order.
inline constexpr std::array<std::string_view, 6> kPaperSchedules = {
    "interleaved 1F1B", "GIS", "GIS-H", "PO-H", "PO-F", "1F1B"};

// Model FLOP utilisation in percent and activation memory in GB; 0 where the paper has none (out of
// memory, or left out).
struct PaperCell {
  int utilisation = 0;
  int gigabytes = 0;
};

struct PaperRow {
  std::string_view model;
  int layers = 0;  // of the model, two less than the pipeline has room for
  int heads = 0;   // kv_heads are 8
  int hidden = 0;
  int microbatches = 0;
  int stages = 0;
  int sequence = 0;
  std::array<PaperCell, 6> cells;
};
std::vector<PaperRow> ScheduleRowsOfPaper();

// k by hidden size and sequence, as printed and by the formula.
void AddOffloadRatios(Report& report);
// Memory and throughput of the paper's models under its schedules.
absl::Status AddPaperModels(Report& report);

}  // namespace shoal::bench

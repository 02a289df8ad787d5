// The dated report of a GPU check: every bar, what all parts found, beside PyTorch's figures where
// there are any.
//
// It is made of files in one folder: NAME.json of each part (part_report.h), torch.json by
// scripts/torch_baseline.py, and of scripts/gpu-check.sh torch-end.txt, how that ended where it did
// not succeed, and gpu-states.csv, a table with its heading.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_check/base/part_report.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/report/bars.h"
#include "bench/report/report.h"

namespace shoal::bench {

struct GpuResults {
  std::vector<PartReport> parts;
  nlohmann::json torch;  // {"skipped": why} where it did not run
  std::vector<std::vector<std::string>> gpu_states;
  // Every wanted bar of these parts (with all of them PyTorch's too), then what else parts found.
  std::vector<PartBar> bars;
};
// Of these parts in the folder; one that left nothing counts as failed, and so does one that did
// not come to its end.
GpuResults LoadResults(const std::string& folder, const PartSizes& sizes,
                       std::span<const Part> parts = Parts());

struct WrittenReport {
  std::string path;  // of the Markdown; the JSON lies beside it
  int failed_parts = 0;
  int missed_bars = 0;
  int bars_not_measured = 0;
};
// DATE-gpu.md and DATE-gpu.json in `output`, or DATE-gpu-PART of one part alone. `notes` are
// paragraphs of the introduction.
absl::StatusOr<WrittenReport> WriteGpuReport(const GpuResults& results, const std::string& output,
                                             const std::vector<std::string>& notes);

// What is printed last: a line for each part and each bar.
std::string ShortTable(const GpuResults& results);

}  // namespace shoal::bench

// The dated report of a GPU check: every bar, all parts' results, and PyTorch's figures if there
// are any.
//
// Made of files in one folder: NAME.json of each part (part_report.h), torch.json by
// scripts/torch_baseline.py, and from scripts/gpu-check.sh torch-end.txt, how that ended if it
// failed, and gpu-states.csv, a table with its heading.
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
  nlohmann::json torch;  // {"skipped": why} if it did not run
  std::vector<std::vector<std::string>> gpu_states;
  // Every wanted bar of these parts (PyTorch's too if all are there), then other bars of the parts.
  std::vector<PartBar> bars;
};
// Loads these parts' results; one without results, or unfinished, counts as failed.
GpuResults LoadResults(const std::string& folder, const PartSizes& sizes,
                       std::span<const Part> parts = Parts());

struct WrittenReport {
  std::string path;  // of the Markdown; the JSON is next to it
  int failed_parts = 0;
  int missed_bars = 0;
  int bars_not_measured = 0;
};
// Writes DATE-gpu.md and DATE-gpu.json to `output`, or DATE-gpu-PART for a single part. `notes` are
// paragraphs of the introduction.
absl::StatusOr<WrittenReport> WriteGpuReport(const GpuResults& results, const std::string& output,
                                             const std::vector<std::string>& notes);

// Printed last: one line for each part and each bar.
std::string ShortTable(const GpuResults& results);

}  // namespace shoal::bench

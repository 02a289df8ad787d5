// The dated report of a GPU check: what all parts found, beside PyTorch's figures where there are
// any.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu/part_report.h"
#include "bench/gpu/parts.h"
#include "bench/report/report.h"

namespace shoal::bench {

// The reports of these parts that were kept in the folder; one that left none counts as failed, and
// so does one that did not come to its end.
std::vector<PartReport> LoadParts(const std::string& folder, std::span<const Part> parts = Parts());

// What scripts/torch_baseline.py wrote; {"skipped": why} where it did not run.
nlohmann::json LoadTorch(const std::string& folder);

// Everything in order. Bars of the comparison with PyTorch are among those of `report`.
void AddParts(const std::vector<PartReport>& parts, Report& report);
void AddTorch(const std::vector<PartReport>& parts, const nlohmann::json& torch, Report& report);

struct WrittenReport {
  std::string path;  // of the Markdown; the JSON lies beside it
  int failed_parts = 0;
  int missed_bars = 0;
};
// DATE-gpu.md and DATE-gpu.json in `output`, of these parts in `folder`. `notes` are paragraphs of
// the introduction.
absl::StatusOr<WrittenReport> WriteGpuReport(const std::string& folder, const std::string& output,
                                             const std::vector<std::string>& notes,
                                             std::span<const Part> parts = Parts());

// What is printed last: a line for each part and each bar.
std::string ShortTable(const std::vector<PartReport>& parts, const nlohmann::json& torch);

}  // namespace shoal::bench

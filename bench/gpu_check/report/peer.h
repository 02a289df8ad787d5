// Compares Shoal's figures with PyTorch's for the same cases, in one run on one GPU.
#pragma once

#include <string>
#include <vector>

#include "bench/gpu_check/base/part_report.h"
#include "bench/gpu_check/report/bars.h"
#include "bench/report/report.h"
#include "nlohmann/json.hpp"

namespace shoal::bench {

// `torch` is what torch_baseline.py wrote, or {"skipped": why}.
PartBar PeerBarOf(const std::string& case_name, PeerOptimizer optimizer,
                  const std::vector<PartReport>& parts, const nlohmann::json& torch);
void AddPeer(const std::vector<PartReport>& parts, const nlohmann::json& torch, Report& report);

}  // namespace shoal::bench

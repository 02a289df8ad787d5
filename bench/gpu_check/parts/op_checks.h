// Turns checks of operators into tables.
#pragma once

#include <string>
#include <vector>

#include "bench/gpu_check/base/flat_kernels.h"
#include "bench/gpu_check/base/part_report.h"
#include "worker/ops/testing/check_ops.h"

namespace shoal::bench {

// Adds rows to the current table, by operator and type. Also keeps AddOpsEnd's counts among the
// report's values, so that a new process may continue.
void AddOpRows(const std::vector<worker::OpCheck>& checks, PartReport& report);
// Adds the bar over all rows added, and a table of the failed checks. `left_out`: why checks are
// missing, empty if none are. Returns how many failed.
int AddOpsEnd(const std::string& left_out, PartReport& report);

// Checks the servers' kernels against the CPU's, bit for bit, on arrays of `count` elements.
std::vector<worker::OpCheck> CheckFlatKernels(worker::Device& device, worker::Stream& stream,
                                              const FlatKernels& under_test, uint64_t seed,
                                              int64_t count);

}  // namespace shoal::bench

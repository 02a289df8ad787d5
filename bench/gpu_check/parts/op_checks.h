// What checks of operators found, as tables.
#pragma once

#include <string>
#include <vector>

#include "bench/gpu_check/base/flat_kernels.h"
#include "bench/gpu_check/base/part_report.h"
#include "worker/ops/testing/check_ops.h"

namespace shoal::bench {

// Rows of the table at hand, by operator and type. What AddOpsEnd tells of is kept among the
// report's values, so that a new process may go on.
void AddOpRows(const std::vector<worker::OpCheck>& checks, PartReport& report);
// The bar of all that rows were added of, and those that failed one by one in a table of their own.
// `left_out`: why that is not all, empty where it is. How many failed.
int AddOpsEnd(const std::string& left_out, PartReport& report);

// The servers' kernels against those of the CPU: the same bits, on arrays of `count` elements.
std::vector<worker::OpCheck> CheckFlatKernels(worker::Device& device, worker::Stream& stream,
                                              const FlatKernels& under_test, uint64_t seed,
                                              int64_t count);

}  // namespace shoal::bench

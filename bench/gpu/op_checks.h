// What checks of operators found, as tables.
#pragma once

#include <vector>

#include "bench/gpu/part_report.h"
#include "worker/ops/testing/check_ops.h"

namespace shoal::bench {

// Rows of the table at hand, by operator and type; those that failed one by one in a table of their
// own; and the bar. How many failed.
int AddOpChecks(const std::vector<worker::OpCheck>& checks, PartReport& report);

}  // namespace shoal::bench

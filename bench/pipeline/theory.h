// The paper's tables beside what is reckoned here for the same machines and models.
#pragma once

#include "absl/status/status.h"
#include "bench/report/report.h"

namespace shoal::bench {

// k by hidden size and sequence, as printed and by the formula.
void AddOffloadRatios(Report& report);
// Memory and throughput of the paper's models under its schedules.
absl::Status AddPaperModels(Report& report);

}  // namespace shoal::bench

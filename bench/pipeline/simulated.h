// Schedules beside each other by simulation: memory against throughput, and peak memory against the
// number of stages. Costs are units: a microbatch takes as long and as much memory in whatever
// number of chunks a stage holds it.
#pragma once

#include "absl/status/status.h"
#include "bench/report/report.h"

namespace shoal::bench {

// Memory against throughput of every schedule, at copies of several speeds: the Pareto front.
absl::Status AddParetoFront(Report& report);

// Peak memory of a stage by the number of stages that a model of one size is cut into.
absl::Status AddStagesCurve(Report& report);

}  // namespace shoal::bench

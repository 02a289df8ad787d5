// Checks whether a schedule can be executed as written (core/plan/schedule/schedule.h says how),
// before anything runs, so that a wrong table is an error with a location and never a pipeline that
// hangs. Pure.
#pragma once

#include "absl/status/status.h"
#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

// Checks the shape: positive counts, a list for each stage.
absl::Status CheckShape(const Schedule& schedule);

// Checks each stage by itself, which implies that all device and host memory is freed at the end:
// - every (chunk, microbatch) has one forward, then one backward for the input and then one for the
//   weights (or both joined);
// - between forward and backward there is nothing, or offload, release, prepare and reload, once
//   each and in this order.
absl::Status CheckStages(const Schedule& schedule);

// Checks messages: what another stage needs is sent once after its producer and received once
// before its consumer, and nothing else is; the sends of each queue are in the order of its
// receives.
absl::Status CheckMessages(const Schedule& schedule);

// Checks that nobody waits forever: the stages' lists, together with what they await from each
// other, have no cycle. The error names the first stage that is stuck and what it waits for.
absl::Status CheckProgress(const Schedule& schedule);

// Runs all checks. InvalidArgument or FailedPrecondition with stage, index in its list and action.
absl::Status CheckSchedule(const Schedule& schedule);

}  // namespace shoal::plan

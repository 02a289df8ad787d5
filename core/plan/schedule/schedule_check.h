// Whether a schedule can be executed as it is written (core/plan/schedule/schedule.h says how):
// looked at before anything runs, so that a wrong table is an error with a place and never a
// pipeline that hangs.
// Pure.
#pragma once

#include "absl/status/status.h"
#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

// The shape holds: counts positive, a list for each stage.
absl::Status CheckShape(const Schedule& schedule);

// Each stage by itself: every (chunk, microbatch) has one forward, then one backward for the input
// and then one for the weights (or both joined); between forward and backward either nothing or
// offload, release, prepare, reload once and in this order. So all device and host memory is given
// back at the end.
absl::Status CheckStages(const Schedule& schedule);

// Messages: what another stage needs is sent once behind its producer and received once ahead of
// its consumer, nothing else is; and the sends of each queue are in the order of its receives.
absl::Status CheckMessages(const Schedule& schedule);

// Nobody waits for ever: the stages' lists together with what they wait for from each other have no
// cycle. The error names the first stage that stands and what it waits for.
absl::Status CheckProgress(const Schedule& schedule);

// All of them. InvalidArgument or FailedPrecondition with stage, place in its list and action.
absl::Status CheckSchedule(const Schedule& schedule);

}  // namespace shoal::plan

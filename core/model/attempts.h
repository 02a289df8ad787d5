// Numbers of a step's attempts, over all runs of a job: what comes late of an earlier run is known
// by them.
#pragma once

#include <cstdint>

namespace shoal::plan {

// At most, of one step and of the validation before it.
inline constexpr int64_t kAttemptsOfARun = 136;

// Of each step of that run; those of earlier runs are below.
constexpr int64_t FirstAttemptOf(int64_t run) { return run * kAttemptsOfARun + 1; }

}  // namespace shoal::plan

// Where simulated samples come from.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "core/plan/step/lengths.h"
#include "core/plan/step/step_plan.h"

namespace shoal::sim {

// Returns the samples of step `step` (the first is 1), always the same ones.
using Minibatches = std::function<absl::StatusOr<std::vector<plan::SampleLength>>(int64_t step)>;

// Draws `samples` new samples for each step; every token is a target.
Minibatches DrawnMinibatches(const plan::LengthDistribution& lengths, int64_t samples,
                             uint64_t seed);

}  // namespace shoal::sim

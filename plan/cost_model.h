// What a sequence costs a worker, in arbitrary but common units: used to balance, never to schedule
// by the clock.
#pragma once

#include <cstdint>
#include <functional>

#include "plan/model_spec.h"

namespace shoal::plan {

// Cost of one sequence of that many tokens; a pack costs the sum over its sequences (attention is
// block-diagonal).
using SequenceCost = std::function<double(int64_t tokens)>;

SequenceCost TokenCost();
// Forward and backward FLOPs from the model's shape.
SequenceCost FlopCost(const ModelSpec& spec);

}  // namespace shoal::plan

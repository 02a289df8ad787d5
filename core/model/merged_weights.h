// The weights of a model with adapters as one without: W + scale B A.
#pragma once

#include "core/model/model_spec.h"

namespace shoal::plan {

// Reads units of `spec` without its adapters, out of those with them. Sums in double, rounded once.
UnitReader MergedWeights(const ModelSpec& spec, UnitReader read);

}  // namespace shoal::plan

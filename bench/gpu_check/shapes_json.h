// Shapes and training cases as JSON for the PyTorch peer, so that both sides train the same.
#pragma once

#include "bench/gpu_check/base/parts.h"
#include "nlohmann/json.hpp"

namespace shoal::bench {

// {"cases": the training cases in order, each with its shape; "attention": the shapes at which
// attention's kernels are timed}.
nlohmann::json ShapesJson(const PartSizes& sizes);

}  // namespace shoal::bench

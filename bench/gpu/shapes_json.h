// The shapes as JSON, for the PyTorch peer: both sides train the same.
#pragma once

#include "nlohmann/json.hpp"

namespace shoal::bench {

// By name, all of plan::NamedShapes().
nlohmann::json ShapesJson();

}  // namespace shoal::bench

// The small model whose weights travel in emulated runs.
#pragma once

#include <string>

#include "core/model/model_spec.h"

namespace shoal::bench {

inline constexpr int64_t kStandInVocabulary = 64;

// config.json of the stand-in for a shape: a few blocks, over which the shape's are spread (fewer
// where devices have many microbatches), and everything else tiny.
std::string StandInConfig(const plan::ModelSpec& shape, int64_t samples_per_device);

}  // namespace shoal::bench

// Several sources of samples as one dataset (data.mixture).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/prepare.h"

namespace shoal::worker {

// Returns one token file of `cache_directory` with the samples of all sources, one source after the
// other; it says how many each has if `keeps_sources`. At least one source, all of one tokenizer.
absl::StatusOr<PreparedData> Mix(const std::vector<PreparedData>& sources, bool keeps_sources,
                                 const std::string& cache_directory);

}  // namespace shoal::worker

// Samples that a job does not train on, taken out of its training data (data.validation.fraction).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/data/prepare.h"

namespace shoal::worker {

struct HeldOut {
  PreparedData train;
  PreparedData validation;
};

// Splits a token file into two of `cache_directory`, made if missing, in its order. Which samples
// are held out, about that part of them, follows from what is in each, so that equal ones stay
// together. InvalidArgument if one of the two would have none.
absl::StatusOr<HeldOut> HoldOut(const PreparedData& data, double fraction,
                                const std::string& cache_directory);

}  // namespace shoal::worker

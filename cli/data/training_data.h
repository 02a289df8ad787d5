// The token files of a job: what it trains on, and what it validates on.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/data/prepare.h"
#include "core/job/job.h"

namespace shoal::cli {

struct TrainingData {
  worker::PreparedData train;
  std::optional<worker::PreparedData> validation;
};

// Tokenises what is not in `cache_folder` yet. An error of what is validated on names its key.
// `progress` is told the bytes done, and in all.
absl::StatusOr<TrainingData> PrepareTrainingData(const plan::Job& job,
                                                 const std::string& cache_folder,
                                                 std::function<void(int64_t, int64_t)> progress);

}  // namespace shoal::cli

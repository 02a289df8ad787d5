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

struct TrainingDataOptions {
  // Goes on with the run whose token files are in the folder: the day that its template was told is
  // told again. FailedPrecondition if the template is another, unless that is accepted.
  bool resumes = false;
  bool accept_changes = false;
  std::function<void(int64_t, int64_t)> progress = {};  // is told the bytes done, and in all
};

// Tokenises what is not in `cache_folder` yet. An error of what is validated on names its key.
absl::StatusOr<TrainingData> PrepareTrainingData(const plan::Job& job,
                                                 const std::string& cache_folder,
                                                 TrainingDataOptions options);

}  // namespace shoal::cli

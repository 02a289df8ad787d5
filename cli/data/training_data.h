// The token files of a job: what it trains on, and what it validates on.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/data/prepare.h"
#include "core/data/rendering.h"
#include "core/job/job.h"

namespace shoal::cli {

struct TrainingData {
  worker::PreparedData train;
  std::optional<worker::PreparedData> validation;
  worker::Rendering rendering;  // for the run to keep (worker::WriteRendering) where it takes over
  std::string date;             // that a template was told; empty: none asks
};

struct TrainingDataOptions {
  // Goes on with the run whose token files are in the folder, on its day unless the job says one.
  // FailedPrecondition if its samples are known to have been made by another template or tokenizer,
  // or with weights where there are none now, or without where there are some, unless that is
  // accepted.
  bool resumes = false;
  bool accept_changes = false;
  std::function<void(int64_t, int64_t)> progress = {};  // is told the bytes done, and in all
  // Says where the job has the key that is wrong; without it errors name the key alone.
  std::function<absl::Status(const char*, const absl::Status&)> at_key = {};
};

// Tokenises what is not in `cache_folder` yet. An error of what is validated on names its key.
absl::StatusOr<TrainingData> PrepareTrainingData(const plan::Job& job,
                                                 const std::string& cache_folder,
                                                 TrainingDataOptions options);

}  // namespace shoal::cli

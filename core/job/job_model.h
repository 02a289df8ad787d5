// The model that a job trains: its folder's, with the job's adapters.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"

namespace shoal::plan {

absl::StatusOr<ModelSpec> ReadJobModel(const Job& job);

// `spec`: the folder's. An error begins with the key that it is of.
absl::StatusOr<ModelSpec> WithJobAdapters(ModelSpec spec, const Job& job);

// Reads units of adapters as they are at the job's start; `spec` has them.
absl::StatusOr<UnitReader> InitialAdapters(const ModelSpec& spec, const Job& job);

}  // namespace shoal::plan

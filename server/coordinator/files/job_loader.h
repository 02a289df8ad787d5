// Reads what a submitted job names: the job itself, the model's shape, the prepared dataset, the
// checkpoint folder.
#pragma once

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/job/job_environment.h"

namespace shoal::server {

// A JobLoader. InvalidArgument and NotFound name what is wrong with the job.
absl::StatusOr<LoadedJob> LoadJob(const proto::SubmitJobRequest& request, int64_t workers);

}  // namespace shoal::server

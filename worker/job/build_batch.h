// Microbatches from the samples that the coordinator names.
#pragma once

#include "absl/status/statusor.h"
#include "core/data/token_file.h"
#include "proto/coordinator.pb.h"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

// The samples in the plan's order, one sequence each.
absl::StatusOr<PackedBatch> BuildBatch(const formats::TokenFile& file,
                                       const proto::MicrobatchWork& work);

}  // namespace shoal::worker

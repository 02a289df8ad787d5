// How large a microbatch is, as the costs of core/plan/pipeline/pace_costs.h see it.
#pragma once

#include "core/plan/pipeline/pace_costs.h"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

plan::MicrobatchSize SizeOfBatch(const PackedBatch& batch);

}  // namespace shoal::worker

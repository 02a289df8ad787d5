// The size of a microbatch, as the costs of core/plan/pipeline/pace_costs.h need it.
#pragma once

#include "core/plan/pipeline/pace_costs.h"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

plan::MicrobatchSize SizeOfBatch(const PackedBatch& batch);

}  // namespace shoal::worker

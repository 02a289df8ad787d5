// How large a microbatch is, as the costs of plan/pipeline_pace.h see it.
#pragma once

#include "plan/pipeline_pace.h"
#include "worker/model/batch.h"

namespace shoal::worker {

plan::MicrobatchSize SizeOfBatch(const PackedBatch& batch);

}  // namespace shoal::worker

// Microbatches of random tokens.
#pragma once

#include <cstdint>

#include "plan/model_spec.h"
#include "worker/model/batch.h"

namespace shoal::bench {

// One sequence, every successor a target.
worker::PackedBatch OneSequence(const plan::ModelSpec& spec, int64_t tokens, uint64_t seed);

}  // namespace shoal::bench

// Microbatches of random tokens.
#pragma once

#include <cstdint>

#include "core/model/model_spec.h"
#include "worker/model/batch/batch.h"

namespace shoal::bench {

// Returns sequences of equal length, `tokens` in all, each token's successor its target.
worker::PackedBatch RandomSequences(const plan::ModelSpec& spec, int64_t tokens, int64_t sequences,
                                    uint64_t seed);
inline worker::PackedBatch OneSequence(const plan::ModelSpec& spec, int64_t tokens, uint64_t seed) {
  return RandomSequences(spec, tokens, 1, seed);
}

}  // namespace shoal::bench

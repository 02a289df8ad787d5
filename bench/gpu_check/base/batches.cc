#include "bench/gpu_check/base/batches.h"

#include <vector>

#include "core/base/random.h"

namespace shoal::bench {

worker::PackedBatch RandomSequences(const plan::ModelSpec& spec, int64_t tokens, int64_t sequences,
                                    uint64_t seed) {
  Random random(seed);
  worker::PackedBatch batch;
  for (int64_t s = 0; s < sequences; ++s) {
    std::vector<int32_t> ids(static_cast<size_t>(tokens / sequences));
    for (int32_t& id : ids) {
      id = static_cast<int32_t>(random.Below(static_cast<uint64_t>(spec.vocabulary)));
    }
    batch.AppendNextToken(ids);
  }
  return batch;
}

}  // namespace shoal::bench

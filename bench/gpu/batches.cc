#include "bench/gpu/batches.h"

#include <vector>

#include "common/random.h"

namespace shoal::bench {

worker::PackedBatch OneSequence(const plan::ModelSpec& spec, int64_t tokens, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(random.Below(static_cast<uint64_t>(spec.vocabulary)));
  }
  worker::PackedBatch batch;
  batch.AppendNextToken(ids);
  return batch;
}

}  // namespace shoal::bench

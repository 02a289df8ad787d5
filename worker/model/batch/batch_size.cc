#include "worker/model/batch/batch_size.h"

#include <vector>

namespace shoal::worker {

plan::MicrobatchSize SizeOfBatch(const PackedBatch& batch) {
  std::vector<int64_t> lengths;
  for (size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
    lengths.push_back(batch.cu_seqlens[i] - batch.cu_seqlens[i - 1]);
  }
  return plan::SizeOfSequences(lengths);
}

}  // namespace shoal::worker

// The arrays of a server's partitions in its GPU's memory: one allocation for each kind of array,
// holding one partition after the other, as on the host (host_state.h). Allocated once and kept.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/gpu/cuda_context.h"
#include "core/gpu/gpu_buffer.h"
#include "server/store/cuda/accumulate.h"
#include "server/store/partition_state.h"

namespace shoal::server::cuda {

// The arrays of one partition, in GPU memory.
struct PartitionArrays {
  int64_t count = 0;
  std::array<float*, 3> state = {};  // by StateArray
  float* sum = nullptr;              // float mode
  int64_t* exact_sum = nullptr;      // exact mode
  int64_t* refused = nullptr;        // exact mode: ExactBlocks(count) of them
  ChunkStatistics* chunks = nullptr;
};

int64_t StatisticsChunks(int64_t count);

class GpuArrays {
 public:
  // ResourceExhausted if the GPU has less free memory than the server needs of it, including
  // streams (staging_stream.h) and shared weights. The context must outlive it.
  absl::Status Allocate(gpu::CudaContext& context, const StateLayout& layout);

  size_t size() const { return partitions_.size(); }
  const PartitionArrays& operator[](size_t partition) const { return partitions_[partition]; }
  // The counts of all partitions, one after the other.
  std::span<const int64_t> refused() const {
    return {refused_.as<int64_t>(), static_cast<size_t>(refused_count_)};
  }
  std::span<const ChunkStatistics> chunks() const {
    return {chunks_.as<ChunkStatistics>(), static_cast<size_t>(chunk_count_)};
  }

 private:
  void Place(const StateLayout& layout);

  gpu::GpuBuffer master_, moments_, gradients_, refused_, chunks_;
  int64_t refused_count_ = 0;
  int64_t chunk_count_ = 0;
  std::vector<PartitionArrays> partitions_;
};

}  // namespace shoal::server::cuda

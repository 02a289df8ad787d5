// Moves data between partitions on a GPU and readers and writers on the host, piece by piece
// through a stream's staging memory. Call with the stream's mutex held and the GPU current; the
// data has moved on return.
#pragma once

#include <span>

#include "absl/status/status.h"
#include "core/gpu/cuda_context.h"
#include "server/store/cuda/gpu_arrays.h"
#include "server/store/cuda/staging_stream.h"
#include "server/store/partition_state.h"

namespace shoal::server::cuda {

// Loads master and moments from `source`, and writes the weights to `weights` in `wire_type`.
absl::Status LoadPartition(gpu::CudaContext& context, const StagingStream& staged,
                           const plan::PartitionSpec& spec, const PartitionArrays& arrays,
                           const StoreSource& source, DType wire_type,
                           const WeightsBuffers& weights);

// Overwrites `to` with the array, which has the same length.
absl::Status ReadArray(gpu::CudaContext& context, const StagingStream& staged, const float* array,
                       std::span<float> to);

}  // namespace shoal::server::cuda

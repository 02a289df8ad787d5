// What moves between partitions on a GPU and readers and writers on the host, piece by piece
// through a lane's staging memory. Called with the lane's mutex held and the GPU current; done on
// return.
#pragma once

#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/gpu/cuda_context.h"
#include "server/store/cuda/gpu_arrays.h"
#include "server/store/cuda/lane.h"
#include "server/store/partition_state.h"

namespace shoal::server::cuda {

// Master and moments from `source`, and the weights in `wire_type` to `weights`.
absl::Status LoadPartition(gpu::CudaContext& context, const Lane& lane,
                           const plan::PartitionSpec& spec, const PartitionArrays& arrays,
                           const StoreSource& source, DType wire_type,
                           const WeightsBuffers& weights);

// Overwrites `to` with the array, which is as long.
absl::Status ReadArray(gpu::CudaContext& context, const Lane& lane, const float* array,
                       std::span<float> to);

}  // namespace shoal::server::cuda

// Sums of gradients on flat arrays in device memory. Computes, operation for operation as
// server/store/accumulate.h, hence with the same bits as on a CPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/gpu/kernel/element.h"

namespace shoal::server::cuda {

// accumulator[i] = 0 + gradient[i], or += gradient[i] (fp32 or bf16).
cudaError_t SetGradient(cudaStream_t stream, const void* gradient, gpu::Element element,
                        float* accumulator, int64_t count);
cudaError_t AddGradient(cudaStream_t stream, const void* gradient, gpu::Element element,
                        float* accumulator, int64_t count);

// Fixed point with 40 bits of fraction. Adds to refused[b] how many elements of block b were not
// added because they are not finite or out of range; there are ExactBlocks(count) blocks.
int64_t ExactBlocks(int64_t count);
cudaError_t AddExactGradient(cudaStream_t stream, const void* gradient, gpu::Element element,
                             int64_t* accumulator, int64_t* refused, int64_t count);
// value[i] = accumulator[i] * 2^-40.
cudaError_t ExactToFloat(cudaStream_t stream, const int64_t* accumulator, float* value,
                         int64_t count);

// Statistics of one chunk of kStatisticsChunk elements; the last chunk may have fewer.
inline constexpr int64_t kStatisticsChunk = 8192;
struct ChunkStatistics {
  double sum_of_squares = 0;
  int64_t non_finite = 0;
};
// Overwrites chunks[ceil(count / kStatisticsChunk)]. Reads `count` elements.
cudaError_t GradientStatistics(cudaStream_t stream, const float* gradient, ChunkStatistics* chunks,
                               int64_t count);

}  // namespace shoal::server::cuda

// A stream of a server's GPU, with the memory that work on one partition at a time needs besides
// the partition's own. Partitions take turns over a few streams (cuda_state.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/gpu/cuda_context.h"
#include "core/gpu/gpu_buffer.h"
#include "server/store/partition_state.h"

namespace shoal::server::cuda {

struct StagingStream {
  // `layout`: of the partitions to come. The context must outlive it; call Close() first.
  absl::Status Open(gpu::CudaContext& context, const StateLayout& layout);
  // Frees everything once what is on the stream is done. Does nothing if it was not opened.
  void Close(gpu::CudaContext& context);

  // Where weights for the GPU are converted to the wire type, after the floats they are converted
  // from.
  std::byte* converted() const {
    return staging.as<std::byte>(staging_elements * int64_t{sizeof(float)});
  }

  absl::Mutex mutex;  // held while a sequence of work is put on the stream, and for the memory
  cudaStream_t stream = nullptr;
  gpu::GpuBuffer elements;  // one partition's: a payload, or new weights in the wire type
  gpu::GpuBuffer gradient;  // exact mode: one partition's sum as floats
  gpu::GpuBuffer staging;   // staging_elements floats; twice as much with shared weights
  int64_t staging_elements = 0;
};

}  // namespace shoal::server::cuda

// A stream of a server's GPU with the memory that work on one partition at a time needs beside the
// partition's own. Partitions take turns over a few (cuda_state.h).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/gpu/cuda_context.h"
#include "core/gpu/gpu_buffer.h"
#include "server/store/partition_state.h"

namespace shoal::server::cuda {

struct Lane {
  // `layout`: of the partitions that will come. The context outlives it, and Close() comes first.
  absl::Status Open(gpu::CudaContext& context, const StateLayout& layout);
  // Once what is put on the stream is done. Nothing where it was not opened.
  void Close(gpu::CudaContext& context);

  // Where weights are converted that go straight on to the GPU: in the wire type, behind what they
  // are converted from.
  std::byte* converted() const {
    return staging.as<std::byte>(staging_elements * int64_t{sizeof(float)});
  }

  absl::Mutex mutex;  // what is put on the stream in one go, and the memory
  cudaStream_t stream = nullptr;
  gpu::GpuBuffer elements;  // a partition's: a payload, or new weights in the wire type
  gpu::GpuBuffer gradient;  // exact mode: a partition's sum as floats
  gpu::GpuBuffer staging;   // staging_elements floats; with shared weights as much again
  int64_t staging_elements = 0;
};

}  // namespace shoal::server::cuda

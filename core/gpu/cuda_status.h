// Errors of the CUDA runtime as statuses: one line that names the GPU, what was done, CUDA's name
// of the error, and what to do about it.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace shoal::gpu {

// `what`: what was done, "copying 4096 B". `gpu` below zero: no certain one. Success is OK; memory
// that is short is ResourceExhausted; no driver and no GPU are NotFound; a driver that is too old
// or a GPU that cannot run this is FailedPrecondition; one that others keep is Unavailable; all
// else is Internal. Takes the error from what the calling thread's next launch would tell.
absl::Status ToStatus(cudaError_t error, int gpu, std::string_view what);

// After such an error every later call fails, and only a new process can use the GPU.
bool IsLasting(cudaError_t error);

}  // namespace shoal::gpu

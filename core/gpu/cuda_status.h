// Turns errors of the CUDA runtime into statuses: one line that names the GPU, what was done,
// CUDA's name of the error, and what to do about it.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "absl/status/status.h"

namespace shoal::gpu {

// `what`: what was done, "copying 4096 B". `gpu` below zero: no particular one. Also clears the
// error, so that the calling thread's next launch does not report it. Codes:
// - OK: success
// - ResourceExhausted: too little memory
// - NotFound: no driver or no GPU
// - FailedPrecondition: a driver that is too old, or a GPU that cannot run this
// - Unavailable: others use the GPU exclusively
// - Internal: everything else
absl::Status ToStatus(cudaError_t error, int gpu, std::string_view what);

// After such an error every later call fails, and only a new process can use the GPU.
bool IsLasting(cudaError_t error);

}  // namespace shoal::gpu

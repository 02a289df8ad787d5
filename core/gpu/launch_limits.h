// What a launch may ask of a GPU, for the launches of kernel_gpu.h and for the fake's. Plain
// C++ over the runtime, because nvcc reads it too.
//
// Shared memory beyond what a block has by default needs a call of the runtime for the kernel, once
// for each GPU and again only if a launch wants more than any before it. Thread-safe. Failure: the
// runtime's error, which is not cached, so the next launch asks again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

namespace shoal::gpu {

inline constexpr int64_t kMaxGridX = 0x7FFFFFFF;
inline constexpr int64_t kMaxGridYz = 65535;
inline constexpr int kMaxBlockThreads = 1024;

// A block has this much by default, including what its kernel declares (SHOAL_SHARED); no kernel
// that takes dynamic shared memory declares more than the second constant.
inline constexpr int64_t kSharedWithoutAsking = 48 << 10;
inline constexpr int64_t kMostDeclaredShared = 16 << 10;

// Sizes that exceed the hardware's numbers would wrap around.
constexpr bool IsGrid(int64_t x, int64_t y, int64_t z) {
  return x >= 1 && x <= kMaxGridX && y >= 1 && y <= kMaxGridYz && z >= 1 && z <= kMaxGridYz;
}

// Whether `bytes` of dynamic shared memory must be asked for.
constexpr bool MustAskForShared(int64_t bytes) {
  return bytes > kSharedWithoutAsking - kMostDeclaredShared;
}

// Allows the kernel this much dynamic shared memory on the calling thread's GPU.
inline cudaError_t AskForShared(const void* kernel, int64_t bytes) {
  static std::mutex mutex;
  static auto* const allowed = new std::map<std::pair<int, const void*>, int64_t>;
  int gpu = 0;
  if (const cudaError_t error = cudaGetDevice(&gpu); error != cudaSuccess) {
    return error;
  }
  const std::lock_guard lock(mutex);
  int64_t& most = (*allowed)[{gpu, kernel}];
  if (bytes <= most) {
    return cudaSuccess;
  }
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) {
    most = bytes;
  } else {
    (void)cudaGetLastError();  // the next launch would report it as its own
  }
  return error;
}

}  // namespace shoal::gpu

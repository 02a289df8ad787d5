// What a launch may ask of a GPU, for the launches of kernel_gpu.h and the emulation's alike. Plain
// C++ over the runtime, because nvcc reads it too.
//
// Shared memory beyond what a block has without asking is allowed to a kernel by a call of the
// runtime, once for each GPU and again only where a launch wants more than any before it. Threads:
// any. Failure: the runtime's error, which is not remembered, so the next launch asks again.
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

// A block has this much without asking, what its kernel declares (SHOAL_SHARED) among it; no
// kernel that takes dynamic shared memory declares more than the second.
inline constexpr int64_t kSharedWithoutAsking = 48 << 10;
inline constexpr int64_t kMostDeclaredShared = 16 << 10;

// Sizes that do not fit the hardware's numbers would come to it as others.
constexpr bool IsGrid(int64_t x, int64_t y, int64_t z) {
  return x >= 1 && x <= kMaxGridX && y >= 1 && y <= kMaxGridYz && z >= 1 && z <= kMaxGridYz;
}

// Whether `bytes` of dynamic shared memory have to be asked for.
constexpr bool MustAskForShared(int64_t bytes) {
  return bytes > kSharedWithoutAsking - kMostDeclaredShared;
}

// Allows the kernel so much dynamic shared memory on the calling thread's GPU.
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
    (void)cudaGetLastError();  // which the next launch would take for its own
  }
  return error;
}

}  // namespace shoal::gpu

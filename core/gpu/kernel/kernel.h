// The primitives of device code: where a thread is, what a block and a warp do together,
// asynchronous copies, tensor cores, launches.
//
// Kernels (*.cu) include this and use nothing else of CUDA. Each is compiled twice: by nvcc, for
// GPUs, and by the host's compiler over core/gpu/fake_cuda, where a launch runs on the CPU, thread
// by thread, against the fake runtime. So machines without a GPU can test what a kernel
// computes, though not how fast it is, nor what a GPU's memory order allows beyond this.
//
// Rules that make the second build possible:
// - All threads of a block (or of a warp, for what a warp does together) reach the same SyncBlock,
//   Shuffle, LoadMatrix or MultiplyAdd; none is left out and none has returned.
// - Shared memory is declared with SHOAL_SHARED or taken from DynamicShared().
// - Kernel arguments are plain values.
// - Launch functions return the runtime's error and check nothing else: the operators above them
//   know the shapes.
#pragma once

#ifdef __CUDACC__
#include "core/gpu/kernel/kernel_gpu.h"
#else
#include "core/gpu/fake_cuda/kernel_cpu.h"
#endif

namespace shoal::gpu {

// Four registers of bits: what a thread loads and stores at once.
struct alignas(16) Bits128 {
  uint32_t word[4];
};

// Sums and maxima over the 32 lanes, in a fixed order: the same bits in all lanes and every run.
SHOAL_DEVICE float WarpSum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += ShuffleXor(value, distance);
  }
  return value;
}
SHOAL_DEVICE float WarpMax(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float other = ShuffleXor(value, distance);
    value = value > other ? value : other;
  }
  return value;
}

SHOAL_DEVICE float ToFloat(float value) { return value; }
SHOAL_DEVICE float ToFloat(Bf16 value) { return __bfloat162float(value); }
template <typename T>
SHOAL_DEVICE T FromFloat(float value) {
  if constexpr (sizeof(T) == 4) {
    return value;
  } else {
    return __float2bfloat16_rn(value);
  }
}

}  // namespace shoal::gpu

// kernel.h on a GPU: each primitive is one or a few instructions. Only kernel.h includes it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/gpu/launch_limits.h"

#define SHOAL_DEVICE __device__ __forceinline__
#define SHOAL_KERNEL __global__ void
// The most threads that a block may have, and the least blocks that a multiprocessor should hold.
#define SHOAL_LAUNCH_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define SHOAL_SHARED __shared__

namespace shoal::gpu {

using Bf16 = __nv_bfloat16;
inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

SHOAL_DEVICE int ThreadIndex() { return static_cast<int>(threadIdx.x); }
SHOAL_DEVICE int BlockThreads() { return static_cast<int>(blockDim.x); }
SHOAL_DEVICE int LaneIndex() { return static_cast<int>(threadIdx.x) % kWarp; }
SHOAL_DEVICE int WarpIndex() { return static_cast<int>(threadIdx.x) / kWarp; }
SHOAL_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
SHOAL_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
SHOAL_DEVICE int BlockZ() { return static_cast<int>(blockIdx.z); }
SHOAL_DEVICE int GridX() { return static_cast<int>(gridDim.x); }
SHOAL_DEVICE int GridY() { return static_cast<int>(gridDim.y); }

SHOAL_DEVICE void SyncBlock() { __syncthreads(); }
SHOAL_DEVICE void SyncWarp() { __syncwarp(); }
// T is float, int or uint32_t.
template <typename T>
SHOAL_DEVICE T ShuffleXor(T value, int mask) {
  return __shfl_xor_sync(kAllLanes, value, mask);
}
template <typename T>
SHOAL_DEVICE T Shuffle(T value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}
// Whether `value` is true in any lane; the same in all of them.
SHOAL_DEVICE bool AnyLane(bool value) { return __any_sync(kAllLanes, value) != 0; }
// The hardware chooses the order of additions: not for results that must not depend on it.
SHOAL_DEVICE void AtomicAdd(float* to, float value) { atomicAdd(to, value); }

SHOAL_DEVICE float Exp(float x) { return expf(x); }
SHOAL_DEVICE float Exp2(float x) { return exp2f(x); }
// 2^x in one instruction: within two units in the last place, zero if it is less than the smallest
// normal number (also for x of minus infinity).
SHOAL_DEVICE float Exp2Approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}
// Within two units in the last place; zero if |b| exceeds 2^126.
SHOAL_DEVICE float DivideApproximate(float a, float b) { return __fdividef(a, b); }
SHOAL_DEVICE float Log(float x) { return logf(x); }
// Rounded to nearest, as in IEEE 754.
SHOAL_DEVICE float SquareRoot(float x) { return __fsqrt_rn(x); }
SHOAL_DEVICE float InverseSquareRoot(float x) { return 1.0f / sqrtf(x); }
SHOAL_DEVICE uint32_t BitsOf(float x) { return __float_as_uint(x); }
SHOAL_DEVICE float FloatOf(uint32_t bits) { return __uint_as_float(bits); }
// Two values in one register: `low` in the lower half.
SHOAL_DEVICE uint32_t PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// 4, 2 or 1 words of global memory at once, aligned to their size. (Stores are intrinsics because
// the compiler splits plain ones of a struct or a uint4.)
template <int kWords>
SHOAL_DEVICE void LoadWords(uint32_t (&to)[kWords], const void* from) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 4) {
    const uint4 words = *static_cast<const uint4*>(from);
    to[0] = words.x, to[1] = words.y, to[2] = words.z, to[3] = words.w;
  } else if constexpr (kWords == 2) {
    const uint2 words = *static_cast<const uint2*>(from);
    to[0] = words.x, to[1] = words.y;
  } else {
    to[0] = *static_cast<const uint32_t*>(from);
  }
}
template <int kWords>
SHOAL_DEVICE void StoreWords(const uint32_t (&from)[kWords], void* to) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 4) {
    __stwb(static_cast<uint4*>(to), make_uint4(from[0], from[1], from[2], from[3]));
  } else if constexpr (kWords == 2) {
    __stwb(static_cast<uint2*>(to), make_uint2(from[0], from[1]));
  } else {
    *static_cast<uint32_t*>(to) = from[0];
  }
}

// The block's dynamic shared memory, aligned to 128 bytes; the launch sets its size.
SHOAL_DEVICE char* DynamicShared() {
  extern __shared__ __align__(128) char shoal_dynamic_shared[];
  return shoal_dynamic_shared;
}

// Copies 16 bytes from global to shared memory, both aligned to that, while the thread goes on;
// writes zeros (and does not read `from`) if not `valid`. A thread's copies since its last
// CommitCopies are one group; WaitCopies<N> waits until all but its N newest groups are done. Other
// threads' copies are visible after a SyncBlock.
SHOAL_DEVICE void CopyAsync16(void* shared, const void* from, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// Copies the first `bytes` of them, and writes zeros for the others.
SHOAL_DEVICE void CopyAsyncUpTo16(void* shared, const void* from, int bytes) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// Same as CopyAsync16 with 8 bytes, aligned to 8.
SHOAL_DEVICE void CopyAsync8(void* shared, const void* from, bool valid) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
SHOAL_DEVICE void CommitCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int N>
SHOAL_DEVICE void WaitCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

// Loads four 8x8 matrices of bf16 from shared memory: lane l gives the address of row l % 8 of
// matrix l / 8 (16 bytes, aligned); register i of lane l then holds elements (l / 4, 2 (l % 4)) and
// the one after it of matrix i. Transposed, element (r, c) is read where (c, r) lies.
SHOAL_DEVICE void LoadMatrix(uint32_t (&to)[4], const void* row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}
SHOAL_DEVICE void LoadMatrixTransposed(uint32_t (&to)[4], const void* row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

// d[16, 8] += a[16, 16] b[16, 8], bf16 into fp32, by the warp. With g = lane / 4, t = lane % 4:
//   d: rows g (d[0], d[1]) and g + 8 (d[2], d[3]), columns 2t and 2t + 1;
//   a: a[0] row g, columns 2t and 2t + 1; a[1] row g + 8; a[2] and a[3] the same 8 columns on;
//   b: b[0] rows 2t and 2t + 1 of column g; b[1] 8 rows on.
SHOAL_DEVICE void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
};

// Puts kernel(arguments...) on the stream: `grid` blocks of `threads` threads (a multiple of 32).
template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, Grid grid, int threads, int64_t shared_bytes,
                   void (*kernel)(Parameters...), Arguments... arguments) {
  if (!IsGrid(grid.x, grid.y, grid.z)) {
    return cudaErrorInvalidConfiguration;
  }
  if (MustAskForShared(shared_bytes)) {
    const cudaError_t error = AskForShared(reinterpret_cast<const void*>(kernel), shared_bytes);
    if (error != cudaSuccess) {
      return error;
    }
  }
  kernel<<<dim3(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                static_cast<unsigned>(grid.z)),
           static_cast<unsigned>(threads), static_cast<size_t>(shared_bytes), stream>>>(
      static_cast<Parameters>(arguments)...);
  return cudaGetLastError();
}

}  // namespace shoal::gpu

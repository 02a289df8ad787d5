// kernel.h on the CPU: the primitives of kernel_gpu.h, over the fake's blocks and its runtime.
// Only kernel.h includes it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <tuple>

#include "core/gpu/fake_cuda/block.h"
#include "core/gpu/fake_cuda/launch.h"
#include "core/gpu/launch_limits.h"

#define SHOAL_DEVICE inline
#define SHOAL_KERNEL void
#define SHOAL_LAUNCH_BOUNDS(threads, blocks)
// Blocks run one after the other, so one variable serves all of them.
#define SHOAL_SHARED static

namespace shoal::gpu {

using Bf16 = __nv_bfloat16;
inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xFFFFFFFFu;

inline int ThreadIndex() { return fake_cuda::running_thread; }
inline int BlockThreads() { return fake_cuda::running_block.threads; }
inline int LaneIndex() { return fake_cuda::running_thread % kWarp; }
inline int WarpIndex() { return fake_cuda::running_thread / kWarp; }
inline int BlockX() { return static_cast<int>(fake_cuda::running_block.block.x); }
inline int BlockY() { return static_cast<int>(fake_cuda::running_block.block.y); }
inline int BlockZ() { return static_cast<int>(fake_cuda::running_block.block.z); }
inline int GridX() { return static_cast<int>(fake_cuda::running_block.grid.x); }
inline int GridY() { return static_cast<int>(fake_cuda::running_block.grid.y); }

inline void SyncBlock(fake_cuda::Where where = fake_cuda::Where::Current()) {
  fake_cuda::WaitForBlock(where);
}
inline void SyncWarp(fake_cuda::Where where = fake_cuda::Where::Current()) {
  fake_cuda::WaitForWarp(where);
}
template <typename T>
T ShuffleXor(T value, int mask, fake_cuda::Where where = fake_cuda::Where::Current()) {
  return std::bit_cast<T>(
      fake_cuda::ExchangeInWarp(std::bit_cast<uint32_t>(value), LaneIndex() ^ mask, where));
}
template <typename T>
T Shuffle(T value, int lane, fake_cuda::Where where = fake_cuda::Where::Current()) {
  return std::bit_cast<T>(fake_cuda::ExchangeInWarp(std::bit_cast<uint32_t>(value), lane, where));
}
inline bool AnyLane(bool value, fake_cuda::Where where = fake_cuda::Where::Current()) {
  int any = value ? 1 : 0;
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    any |= ShuffleXor(any, distance, where);
  }
  return any != 0;
}
inline void AtomicAdd(float* to, float value) {
  std::atomic_ref<float>(*to).fetch_add(value, std::memory_order_relaxed);
}

inline float Exp(float x) { return std::exp(x); }
inline float Exp2(float x) { return std::exp2(x); }
inline float Exp2Approximate(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}
inline float DivideApproximate(float a, float b) {
  return std::abs(b) > 0x1p126f ? std::copysign(0.0f, a * b) : a / b;
}
inline float Log(float x) { return std::log(x); }
inline float SquareRoot(float x) { return std::sqrt(x); }
inline float InverseSquareRoot(float x) { return 1.0f / std::sqrt(x); }
inline uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }
inline float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t PackBf16(float low, float high) {
  const auto bits = [](float value) -> uint32_t {
    return std::bit_cast<uint16_t>(__float2bfloat16_rn(value));
  };
  return bits(low) | bits(high) << 16;
}

template <int kWords>
void LoadWords(uint32_t (&to)[kWords], const void* from,
               fake_cuda::Where where = fake_cuda::Where::Current()) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  fake_cuda::CheckAligned(from, sizeof(to), where);
  std::memcpy(to, from, sizeof(to));
}
template <int kWords>
void StoreWords(const uint32_t (&from)[kWords], void* to,
                fake_cuda::Where where = fake_cuda::Where::Current()) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  fake_cuda::CheckAligned(to, sizeof(from), where);
  std::memcpy(to, from, sizeof(from));
}

inline char* DynamicShared() { return fake_cuda::running_block.dynamic_shared; }

inline void CopyAsync16(void* shared, const void* from, bool valid,
                        fake_cuda::Where where = fake_cuda::Where::Current()) {
  fake_cuda::BeginCopy(shared, from, 16, valid ? 16 : 0, where);
}
inline void CopyAsyncUpTo16(void* shared, const void* from, int bytes,
                            fake_cuda::Where where = fake_cuda::Where::Current()) {
  fake_cuda::BeginCopy(shared, from, 16, static_cast<size_t>(bytes), where);
}
inline void CopyAsync8(void* shared, const void* from, bool valid,
                       fake_cuda::Where where = fake_cuda::Where::Current()) {
  fake_cuda::BeginCopy(shared, from, 8, valid ? 8 : 0, where);
}
inline void CommitCopies() { fake_cuda::CommitCopyGroup(); }
template <int N>
void WaitCopies() {
  fake_cuda::WaitForCopyGroups(N);
}

inline void LoadMatrix(uint32_t (&to)[4], const void* row,
                       fake_cuda::Where where = fake_cuda::Where::Current()) {
  fake_cuda::LoadMatrixInWarp(to, row, false, where);
}
inline void LoadMatrixTransposed(uint32_t (&to)[4], const void* row,
                                 fake_cuda::Where where = fake_cuda::Where::Current()) {
  fake_cuda::LoadMatrixInWarp(to, row, true, where);
}
inline void MultiplyAdd(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        fake_cuda::Where where = fake_cuda::Where::Current()) {
  fake_cuda::MultiplyAddInWarp(d, a, b, where);
}

using Grid = fake_cuda::Extent;

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(cudaStream_t stream, Grid grid, int threads, int64_t shared_bytes,
                   void (*kernel)(Parameters...), Arguments... arguments) {
  const void* const function = reinterpret_cast<const void*>(kernel);
  if (MustAskForShared(shared_bytes)) {
    if (const cudaError_t error = AskForShared(function, shared_bytes); error != cudaSuccess) {
      return error;
    }
  }
  std::tuple<Parameters...> values{static_cast<Parameters>(arguments)...};
  fake_cuda::PutLaunch(stream, grid, threads, shared_bytes, function,
                       [kernel, values] { std::apply(kernel, values); });
  return cudaGetLastError();
}

}  // namespace shoal::gpu

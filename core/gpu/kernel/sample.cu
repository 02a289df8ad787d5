#include "core/gpu/kernel/kernel.h"
#include "core/gpu/kernel/sample.h"

namespace shoal::gpu::sample {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;

SHOAL_KERNEL SHOAL_LAUNCH_BOUNDS(kThreads, 1)
    AddToKernel(float* to, const float* from, float add, int64_t count) {
  const int64_t i = static_cast<int64_t>(BlockX()) * BlockThreads() + ThreadIndex();
  if (i < count) {
    to[i] = from[i] + add;
  }
}

template <typename T>
SHOAL_KERNEL SumRowsKernel(float* sums, const T* x, int64_t columns) {
  SHOAL_SHARED float of_warps[kWarps];
  const int64_t row = static_cast<int64_t>(BlockY()) * GridX() + BlockX();
  float sum = 0;
  for (int64_t column = ThreadIndex(); column < columns; column += BlockThreads()) {
    sum += ToFloat(x[row * columns + column]);
  }
  sum = WarpSum(sum);
  if (LaneIndex() == 0) {
    of_warps[WarpIndex()] = sum;
  }
  SyncBlock();
  if (ThreadIndex() == 0) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      total += of_warps[w];
    }
    sums[row] = total;
  }
}

SHOAL_KERNEL ShuffleKernel(int* to, const int* from, int mask) {
  const int lane = LaneIndex();
  const int value = from[lane];
  to[lane] = ShuffleXor(value, mask);
  to[kWarp + lane] = Shuffle(value, (lane + 1) % kWarp);
}

SHOAL_KERNEL ProductKernel(float* d, const Bf16* a, const Bf16* b, bool waits) {
  auto* shared_a = reinterpret_cast<Bf16*>(DynamicShared());
  Bf16* shared_b = shared_a + 16 * 16;
  const int lane = LaneIndex();
  CopyAsync16(shared_a + 8 * lane, a + 8 * lane, true);
  CommitCopies();
  if (lane < 16) {
    CopyAsync16(shared_b + 8 * lane, b + 8 * lane, true);
  }
  CommitCopies();
  if (waits) {
    WaitCopies<0>();
  } else {
    WaitCopies<1>();
  }
  SyncBlock();
  uint32_t registers_a[4];
  uint32_t registers_b[4];
  // Matrices 0 to 3: rows 0 and 8 of the left columns, then of the right ones.
  LoadMatrix(registers_a, shared_a + (lane % 16) * 16 + lane / 16 * 8);
  // Rows 0 to 15 of b, twice.
  LoadMatrixTransposed(registers_b, shared_b + (lane % 16) * 8);
  float sums[4] = {0, 0, 0, 0};
  const uint32_t pair[2] = {registers_b[0], registers_b[1]};
  MultiplyAdd(sums, registers_a, pair);
  const int row = lane / 4;
  const int column = 2 * (lane % 4);
  d[row * 8 + column] = sums[0];
  d[row * 8 + column + 1] = sums[1];
  d[(row + 8) * 8 + column] = sums[2];
  d[(row + 8) * 8 + column + 1] = sums[3];
}

SHOAL_KERNEL RotateKernel(int* to, const int* from, int shift, bool waits) {
  auto* shared = reinterpret_cast<int*>(DynamicShared());
  const int i = ThreadIndex();
  shared[i] = from[i];
  if (waits) {
    SyncBlock();
  }
  to[i] = shared[(i + shift) % kThreads];
}

SHOAL_KERNEL WrongKernel(Wrong wrong, float* out) {
  if (wrong == Wrong::kEarlyReturn && LaneIndex() == 3) {
    return;
  }
  if (wrong == Wrong::kReturnsFromBlock && WarpIndex() == 1) {
    return;
  }
  if (wrong == Wrong::kOutOfShared) {
    DynamicShared()[128 * BlockThreads() / kThreads] = 1;
  }
  if (wrong == Wrong::kOverflow) {
    out[0] = static_cast<float>(ThreadIndex() * (INT32_MAX / 2));
  }
  if (wrong == Wrong::kDifferentPlaces && WarpIndex() == 1) {
    SyncBlock();
  } else {
    SyncBlock();
  }
  out[ThreadIndex()] = WarpMax(1.0f);
}

SHOAL_KERNEL LookKernel(float* to) {
  auto* shared = reinterpret_cast<uint32_t*>(DynamicShared());
  if (ThreadIndex() == 0) {
    to[0] = FloatOf(shared[BlockX()]);
    shared[BlockX()] = BitsOf(1.0f);
    CopyAsync16(shared + 4, nullptr, false);
    CommitCopies();
    WaitCopies<0>();
    to[1] = FloatOf(shared[5]);
  }
  SyncWarp();
  AtomicAdd(to + 2, 1.0f);
}

SHOAL_KERNEL TouchSharedKernel(uint32_t* to, int64_t bytes) {
  auto* const last = reinterpret_cast<uint32_t*>(DynamicShared() + bytes) - 1;
  if (ThreadIndex() == 0) {
    *last = static_cast<uint32_t>(bytes);
  }
  SyncBlock();
  to[ThreadIndex()] = *last;
}

}  // namespace

cudaError_t AddTo(cudaStream_t stream, float* to, const float* from, float add, int64_t count) {
  return Launch(stream, {.x = (count + kThreads - 1) / kThreads}, kThreads, 0, AddToKernel, to,
                from, add, count);
}

cudaError_t SumRows(cudaStream_t stream, float* sums, const float* x, int64_t rows,
                    int64_t columns) {
  return Launch(stream, {.x = rows}, kThreads, 0, SumRowsKernel<float>, sums, x, columns);
}

cudaError_t ShuffleLanes(cudaStream_t stream, int* to, const int* from, int mask) {
  return Launch(stream, {}, kWarp, 0, ShuffleKernel, to, from, mask);
}

cudaError_t Product(cudaStream_t stream, float* d, const void* a, const void* b, bool waits) {
  return Launch(stream, {}, kWarp, (16 * 16 + 16 * 8) * 2, ProductKernel, d,
                static_cast<const Bf16*>(a), static_cast<const Bf16*>(b), waits);
}

cudaError_t Rotate(cudaStream_t stream, int* to, const int* from, int shift, bool waits) {
  return Launch(stream, {}, kThreads, kThreads * sizeof(int), RotateKernel, to, from, shift, waits);
}

cudaError_t RunWrong(cudaStream_t stream, Wrong wrong, float* out) {
  return Launch(stream, {}, kThreads, 128, WrongKernel, wrong, out);
}

cudaError_t LookAtShared(cudaStream_t stream, float* to) {
  return Launch(stream, {.x = 2}, kWarp, 64, LookKernel, to);
}

cudaError_t TouchShared(cudaStream_t stream, uint32_t* to, int64_t bytes) {
  return Launch(stream, {}, kWarp, bytes, TouchSharedKernel, to, bytes);
}

}  // namespace shoal::gpu::sample

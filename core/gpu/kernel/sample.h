// Kernels that use every word of kernel.h once: for the emulation's test, and to see that nvcc
// takes them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shoal::gpu::sample {

// to[i] = from[i] + add. One thread an element.
cudaError_t AddTo(cudaStream_t stream, float* to, const float* from, float add, int64_t count);

// sums[row] of x[rows, columns], by a block of 128 threads a row.
cudaError_t SumRows(cudaStream_t stream, float* sums, const float* x, int64_t rows,
                    int64_t columns);

// to[lane] = from[lane ^ mask] and, behind it, from[lane + 1] around the warp.
cudaError_t ShuffleLanes(cudaStream_t stream, int* to, const int* from, int mask);

// d[16, 8] of a[16, 16] and b[16, 8], bf16 by rows: copied by CopyAsync16, loaded by LoadMatrix (a)
// and LoadMatrixTransposed (b). `waits`: false leaves out the wait for the copies.
cudaError_t Product(cudaStream_t stream, float* d, const void* a, const void* b, bool waits);

// to[i] = from[(i + shift) % 128], through shared memory. `waits`: false leaves out the block's
// barrier between.
cudaError_t Rotate(cudaStream_t stream, int* to, const int* from, int shift, bool waits);

// What is wrong with threads, for what the emulation says of it.
enum class Wrong : uint8_t {
  kEarlyReturn,       // lane 3 returns before its warp shuffles
  kDifferentPlaces,   // a warp is at SyncBlock, another elsewhere at one
  kOutOfShared,       // one byte behind the dynamic shared memory
  kReturnsFromBlock,  // warp 1 returns before the block's barrier
  kOverflow,          // an int is more than it can be
};
cudaError_t RunWrong(cudaStream_t stream, Wrong wrong, float* out);

// to[i] of the block's dynamic shared memory as it finds it, and of 16 bytes that a copy, not
// valid, has written; to[2] is added to by every thread of two blocks.
cudaError_t LookAtShared(cudaStream_t stream, float* to);

// A block with so many bytes of dynamic shared memory, whose last word becomes `to`.
cudaError_t TouchShared(cudaStream_t stream, uint32_t* to, int64_t bytes);

}  // namespace shoal::gpu::sample

// Kernels that use every primitive of kernel.h once: for the fake's test, and to check that
// nvcc accepts them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shoal::gpu::sample {

// to[i] = from[i] + add. One thread per element.
cudaError_t AddTo(cudaStream_t stream, float* to, const float* from, float add, int64_t count);

// sums[row] of x[rows, columns], by a block of 128 threads per row.
cudaError_t SumRows(cudaStream_t stream, float* sums, const float* x, int64_t rows,
                    int64_t columns);

// to[lane] = from[lane ^ mask], followed by from[lane + 1] around the warp.
cudaError_t ShuffleLanes(cudaStream_t stream, int* to, const int* from, int mask);

// d[16, 8] of a[16, 16] and b[16, 8], bf16 by rows: copied by CopyAsync16, loaded by LoadMatrix (a)
// and LoadMatrixTransposed (b). `waits`: false omits the wait for the copies.
cudaError_t Product(cudaStream_t stream, float* d, const void* a, const void* b, bool waits);

// to[i] = from[(i + shift) % 128], through shared memory. `waits`: false omits the block's barrier
// in between.
cudaError_t Rotate(cudaStream_t stream, int* to, const int* from, int shift, bool waits);

// What threads do wrong, to test what the fake says about it.
enum class Wrong : uint8_t {
  kEarlyReturn,       // lane 3 returns before its warp shuffles
  kDifferentPlaces,   // a warp is at one SyncBlock, another at a different one
  kOutOfShared,       // one byte after the dynamic shared memory
  kReturnsFromBlock,  // warp 1 returns before the block's barrier
  kOverflow,          // an int overflows
};
cudaError_t RunWrong(cudaStream_t stream, Wrong wrong, float* out);

// to[i] of the block's initial dynamic shared memory, and of 16 bytes written by a copy that is not
// valid; every thread of two blocks adds to to[2].
cudaError_t LookAtShared(cudaStream_t stream, float* to);

// Runs a block with this much dynamic shared memory, whose last word becomes `to`.
cudaError_t TouchShared(cudaStream_t stream, uint32_t* to, int64_t bytes);

}  // namespace shoal::gpu::sample

// Our own kernels for matrix products, used if cuBLASLt is not found or refuses a shape. matmul.h
// chooses between the two.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

// The part of C that a block of a tensor core kernel computes: rows x columns.
enum class MatmulTile : uint8_t { k64x64, k128x128, k128x256 };

// C[m, n] = op(A)[m, k] op(B)[k, n], plus what is added. Sizes are below 2^31 and positive.
struct MatmulLaunch {
  ConstView a;
  ConstView b;
  View c;
  ConstView added;  // C's shape and type, C itself or other memory; no data: nothing
  bool transpose_a = false;
  bool transpose_b = false;
  MatmulTile tile = MatmulTile::k64x64;
  // Above 1, split i sums over k in [i, i + 1) x k_per_split (a multiple of 64; no split is empty)
  // into partials[i][m][n], each split at the next multiple of 4 floats after the last, and
  // SumPartials makes C from them.
  int splits = 1;
  int64_t k_per_split = 0;
  float* partials = nullptr;

  int64_t m() const { return c.rows; }
  int64_t n() const { return c.columns; }
  int64_t k() const { return transpose_a ? a.rows : a.columns; }
  int64_t partial_stride() const { return (m() * n() + 3) / 4 * 4; }
};

// bf16 A and B whose stored rows start at multiples of 16 bytes; not both transposed, and if B is,
// k is a multiple of 8. Elements between the end of a row and the next multiple of 8 are read, and
// may be anything. Any tile, any number of splits.
cudaError_t AlignedMatmul(cudaStream_t stream, const MatmulLaunch& launch);
// bf16 A and B of any stride and alignment, 64x64 tiles, any number of splits.
cudaError_t UnalignedMatmul(cudaStream_t stream, const MatmulLaunch& launch);
// fp32 throughout, without tensor cores or splits.
cudaError_t PlainMatmul(cudaStream_t stream, const MatmulLaunch& launch);
// C = the sum of the partials in order, plus what is added.
cudaError_t SumPartials(cudaStream_t stream, const MatmulLaunch& launch);

}  // namespace shoal::worker::cuda

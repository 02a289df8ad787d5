// Products for tests: random operands in (fake) device memory, the oracle's results for them,
// and a check of every element of C and of what surrounds it.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

#include "core/base/random.h"
#include "worker/ops/ops.h"

namespace shoal::worker::cuda {

struct MatmulCase {
  int64_t m = 1;
  int64_t n = 1;
  int64_t k = 1;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  bool addend = false;
  DType input = DType::kBF16;
  DType output = DType::kF32;
  // Elements between a row's end and the next row, and before the first row.
  int64_t a_gap = 0;
  int64_t b_gap = 0;
  int64_t c_gap = 0;
  int64_t addend_gap = 0;
  int64_t offset = 0;

  std::string ToString() const;
};

// Any types, transpositions and gaps, sizes up to `most`; or `aligned`: as AlignedMatmul needs
// them.
MatmulCase RandomCase(Random& random, int64_t most, bool aligned);

// Puts the operands into device memory (C full of NaN unless it is added to), runs `product` on
// `stream`, and expects C to equal the oracle's and nothing else to have changed. Returns C's
// bytes.
std::vector<std::byte> ExpectProduct(const MatmulCase& c, Random& random, cudaStream_t stream,
                                     const std::function<void(const MatmulArgs&)>& product);

}  // namespace shoal::worker::cuda

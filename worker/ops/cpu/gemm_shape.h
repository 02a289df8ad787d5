// Sizes, strides and types of a matrix product.
#pragma once

#include <compare>
#include <cstdint>

#include "core/base/dtype.h"

namespace shoal::worker::cpu {

// C[m, n] = op(A) op(B) (+ C). Strides in elements between the rows as stored.
struct GemmShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t c_stride = 0;
  DType input = DType::kF32;
  DType output = DType::kF32;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;

  auto operator<=>(const GemmShape&) const = default;
};

}  // namespace shoal::worker::cpu

// Whether kernels may read 16 bytes of a row at once.
#pragma once

#include <cstdint>

#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

// Whether all heads of all rows of a matrix start and end at multiples of 16 bytes.
inline bool RowsAreAligned(const void* data, int64_t stride, Element element, int64_t head_dim) {
  const int64_t size = element == Element::kF32 ? 4 : 2;
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * size % 16 == 0 &&
         head_dim * size % 16 == 0;
}

}  // namespace shoal::worker::cuda

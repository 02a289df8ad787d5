// Dot products of rows in global memory, 16 bytes at a time if they are aligned.
#pragma once

#include "core/gpu/kernel/kernel.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/attention/alignment.h"

namespace shoal::worker::cuda {

// For 1 element, or 16 bytes' worth.
template <typename T, int kElements>
SHOAL_DEVICE float DotElements(const T* a, const T* b) {
  if constexpr (kElements == 1) {
    return ToFloat(*a) * ToFloat(*b);
  } else {
    static_assert(kElements * sizeof(T) == 16);
    uint32_t a_words[4];
    uint32_t b_words[4];
    LoadWords(a_words, a);
    LoadWords(b_words, b);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 4) {
        sum += FloatOf(a_words[i]) * FloatOf(b_words[i]);
      } else {
        sum += FloatOf(a_words[i] << 16) * FloatOf(b_words[i] << 16) +
               FloatOf(a_words[i] & 0xFFFF0000u) * FloatOf(b_words[i] & 0xFFFF0000u);
      }
    }
    return sum;
  }
}

template <typename T, int kElements>
SHOAL_DEVICE float Dot(const T* a, const T* b, int count) {
  float sum = 0;
#pragma unroll 2
  for (int i = 0; i < count; i += kElements) {
    sum += DotElements<T, kElements>(a + i, b + i);
  }
  return sum;
}

}  // namespace shoal::worker::cuda

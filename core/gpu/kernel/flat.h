// Work on flat arrays: how many elements at once, and launches that cover them. Only for kernels.
#pragma once

#include "core/gpu/kernel/blocks.h"
#include "core/gpu/kernel/dispatch.h"
#include "core/gpu/kernel/packed.h"

namespace shoal::gpu {

// Elements that a thread of a wide launch handles at once: 16 bytes of fp32.
inline constexpr int kFlatWidth = 4;

// Calls launch(Constant<width>, begin, count): once for all whole widths if the arrays are
// `aligned`, and once, element by element, for the rest.
template <typename Launcher>
cudaError_t ForFlat(int64_t count, bool aligned, const Launcher& launch) {
  const int64_t wide = aligned ? count / kFlatWidth * kFlatWidth : 0;
  if (wide > 0) {
    const cudaError_t error = launch(Constant<kFlatWidth>(), int64_t{0}, wide);
    if (error != cudaSuccess) {
      return error;
    }
  }
  return wide < count ? launch(Constant<1>(), wide, count - wide) : cudaSuccess;
}

}  // namespace shoal::gpu

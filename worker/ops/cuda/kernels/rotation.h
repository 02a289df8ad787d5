// Pairs of elements of heads turned by the angles of a token, in device code. For kernels alone.
#pragma once

#include "gpu/packed.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {

// Of the pairs (j, j + D/2) of kCount neighbouring j.
template <int kCount>
struct Angles {
  float cosines[kCount];
  float sines[kCount];
};

// Those from `at` on of tables, to turn by or to turn back by. Where kCount is not one, the tables
// and `at` are multiples of 16 bytes.
template <int kCount>
SHOAL_DEVICE Angles<kCount> LoadAngles(const float* cosines, const float* sines, int64_t at,
                                       bool back) {
  constexpr int kLoad = kCount < 4 ? kCount : 4;
  Angles<kCount> angles;
#pragma unroll
  for (int j = 0; j < kCount; j += kLoad) {
    float loaded[kLoad];
    LoadFloats<float>(cosines, at + j, loaded);
#pragma unroll
    for (int l = 0; l < kLoad; ++l) {
      angles.cosines[j + l] = loaded[l];
    }
    LoadFloats<float>(sines, at + j, loaded);
#pragma unroll
    for (int l = 0; l < kLoad; ++l) {
      angles.sines[j + l] = back ? -loaded[l] : loaded[l];
    }
  }
  return angles;
}

template <typename T, int kCount>
SHOAL_DEVICE void Turn(const Angles<kCount>& angles, Packed<T, kCount>& firsts,
                       Packed<T, kCount>& seconds) {
  float first[kCount];
  float second[kCount];
  Unpack(firsts, first);
  Unpack(seconds, second);
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    const float a = first[j];
    const float b = second[j];
    first[j] = a * angles.cosines[j] - b * angles.sines[j];
    second[j] = b * angles.cosines[j] + a * angles.sines[j];
  }
  firsts = Pack<T, kCount>(first);
  seconds = Pack<T, kCount>(second);
}

}  // namespace shoal::worker::cuda

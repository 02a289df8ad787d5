// Turns pairs of elements of heads by the angles of a token, in device code. Only for kernels.
#pragma once

#include "core/gpu/kernel/blocks.h"
#include "core/gpu/kernel/packed.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {

// Heads of a token that a thread turns by the same angles.
inline constexpr int kHeadsOfThread = 4;

// How threads divide the heads of rows: one for each chunk of half a head of a group of heads,
// chunks first, then groups, then tokens.
struct HeadWork {
  int64_t threads = 0;  // at most INT32_MAX can be numbered
  uint32_t chunks = 0;  // of half a head
  uint32_t groups = 0;  // of kHeadsOfThread heads

  static HeadWork Of(int64_t tokens, int64_t heads, int64_t half, int64_t chunk) {
    const int64_t chunks = half / chunk;
    const int64_t groups = DivideUp(heads, kHeadsOfThread);
    return {tokens * groups * chunks, static_cast<uint32_t>(chunks), static_cast<uint32_t>(groups)};
  }
};

// The share of a thread whose number is below HeadWork::threads.
struct HeadPart {
  uint32_t token;
  int64_t head;    // the first of the group
  int64_t column;  // the first of the chunk within half a head
};
SHOAL_DEVICE HeadPart PartOf(const HeadWork& work, int64_t thread, int chunk) {
  const auto linear = static_cast<uint32_t>(thread);
  return {.token = linear / work.chunks / work.groups,
          .head = int64_t{linear / work.chunks % work.groups} * kHeadsOfThread,
          .column = int64_t{linear % work.chunks} * chunk};
}

// Angles of the pairs (j, j + D/2) of kCount neighbouring j.
template <int kCount>
struct Angles {
  float cosines[kCount];
  float sines[kCount];
};

// Loads the angles at `at` of the tables, to turn by or to turn back by. Unless kCount is one, the
// tables and `at` must be multiples of 16 bytes.
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

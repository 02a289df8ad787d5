// Several neighbouring elements at once in device code: as they lie in memory, and as floats. Only
// for kernels.
#pragma once

#include "core/gpu/kernel/kernel.h"

namespace shoal::gpu {

// kCount elements, loaded and stored at once.
template <typename T, int kCount>
struct Packed {
  static_assert(sizeof(T) * kCount >= 4 && sizeof(T) * kCount <= 16);
  uint32_t word[sizeof(T) * kCount / 4];
};
template <>
struct Packed<Bf16, 1> {
  Bf16 value;
};

template <typename T, int kCount>
SHOAL_DEVICE void Unpack(const Packed<T, kCount>& packed, float (&to)[kCount]) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      to[i] = FloatOf(packed.word[i]);
    }
  } else if constexpr (kCount == 1) {
    to[0] = ToFloat(packed.value);
  } else {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      to[2 * i] = FloatOf(packed.word[i] << 16);
      to[2 * i + 1] = FloatOf(packed.word[i] & 0xFFFF0000u);
    }
  }
}

template <typename T, int kCount>
SHOAL_DEVICE Packed<T, kCount> Pack(const float (&from)[kCount]) {
  Packed<T, kCount> packed;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      packed.word[i] = BitsOf(from[i]);
    }
  } else if constexpr (kCount == 1) {
    packed.value = FromFloat<Bf16>(from[0]);
  } else {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      packed.word[i] = PackBf16(from[2 * i], from[2 * i + 1]);
    }
  }
  return packed;
}

template <typename T, int kCount>
SHOAL_DEVICE Packed<T, kCount> LoadPacked(const void* data, int64_t index) {
  Packed<T, kCount> packed;
  const T* from = static_cast<const T*>(data) + index;
  if constexpr (sizeof(packed) == 2) {
    packed.value = *from;
  } else {
    LoadWords(packed.word, from);
  }
  return packed;
}
template <typename T, int kCount>
SHOAL_DEVICE void StorePacked(const Packed<T, kCount>& value, void* data, int64_t index) {
  T* to = static_cast<T*>(data) + index;
  if constexpr (sizeof(value) == 2) {
    *to = value.value;
  } else {
    StoreWords(value.word, to);
  }
}
template <typename T, int kCount>
SHOAL_DEVICE void LoadFloats(const void* data, int64_t index, float (&to)[kCount]) {
  Unpack(LoadPacked<T, kCount>(data, index), to);
}
template <typename T, int kCount>
SHOAL_DEVICE void StoreFloats(const float (&from)[kCount], void* data, int64_t index) {
  StorePacked(Pack<T, kCount>(from), data, index);
}

}  // namespace shoal::gpu

// Bytes that identify themselves: writes a pattern derived from a number, and checks whether memory
// still holds it. As fast as memory can be written and read.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shoal::worker {

// Returns a different number for each pair of numbers.
inline uint64_t Mixed(uint64_t a, uint64_t b) {
  uint64_t z = a + 0x9E3779B97F4A7C15ULL * (b + 1);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

namespace internal {
inline constexpr uint64_t kPatternStep = 0xD1B54A32D192ED03ULL;
}

inline void FillPattern(std::byte* to, int64_t bytes, uint64_t number) {
  for (int64_t at = 0; at < bytes; at += 8) {
    std::memcpy(to + at, &number, static_cast<size_t>(std::min<int64_t>(8, bytes - at)));
    number += internal::kPatternStep;
  }
}

// Returns the first index that differs, or -1.
inline int64_t FindDifference(const std::byte* from, int64_t bytes, uint64_t number) {
  for (int64_t at = 0; at < bytes; at += 8) {
    if (std::memcmp(from + at, &number, static_cast<size_t>(std::min<int64_t>(8, bytes - at))) !=
        0) {
      return at;
    }
    number += internal::kPatternStep;
  }
  return -1;
}

}  // namespace shoal::worker

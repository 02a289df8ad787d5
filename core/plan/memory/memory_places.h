// Places pieces of memory in one stretch, when the start and end of each one's use are known
// beforehand, so that the stretch is hardly longer than the most in use at once. Pure and
// deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shoal::plan {

// A piece of `size` > 0 bytes that is in use from one moment until another.
struct MemoryStay {
  int64_t size = 0;
  size_t from = 0;
  size_t until = 0;
};

struct MemoryPlaces {
  std::vector<int64_t> begins;  // of the stays, in bytes from the start of the stretch
  int64_t capacity = 0;         // of the stretch
};

// `stays` must be in the order in which they begin. Places are multiples of `alignment`. Tries in
// turn, and stops at a stretch of at most `enough`:
// - pieces as they come, each in the smallest hole that it fits;
// - if that leaves holes, the largest pieces first, or those that are largest and stay longest,
//   where that needs less.
MemoryPlaces PlaceStays(std::span<const MemoryStay> stays, int64_t alignment, int64_t enough = 0);

}  // namespace shoal::plan

// Where pieces of memory lie in one stretch when it is known beforehand when each comes and goes:
// so that the stretch need hardly be longer than what is in use at once. Pure and deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shoal::plan {

// A piece of `size` > 0 bytes that is in use from one moment up to another.
struct MemoryStay {
  int64_t size = 0;
  size_t from = 0;
  size_t until = 0;
};

struct MemoryPlaces {
  std::vector<int64_t> begins;  // of the stays, in bytes from the begin of the stretch
  int64_t capacity = 0;         // of the stretch
};

// Stays in the order in which they begin. Places are multiples of `alignment`. Pieces as they come,
// each in the smallest hole that it fits, are where nothing is lost; where holes are left that way,
// the largest pieces choose first, or those that are largest and stay longest, if that needs less.
// Nothing better is looked for than a stretch of `enough`.
MemoryPlaces PlaceStays(std::span<const MemoryStay> stays, int64_t alignment, int64_t enough = 0);

}  // namespace shoal::plan

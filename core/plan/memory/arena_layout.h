// Lays buffers out in one arena, when the start and end of each one's use are known
// beforehand, so that the arena is hardly larger than the most in use at once. Pure and
// deterministic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shoal::plan {

// A buffer of `size` > 0 bytes that is in use from one moment until another.
struct Lifetime {
  int64_t size = 0;
  size_t from = 0;
  size_t until = 0;
};

struct ArenaLayout {
  std::vector<int64_t> offsets;  // of the lifetimes, in bytes from the start of the arena
  int64_t capacity = 0;          // of the arena
};

// `lifetimes` must be in the order in which they begin. Offsets are multiples of `alignment`. Tries
// in turn, and stops at an arena of at most `enough`:
// - buffers as they come, each in the smallest hole that it fits;
// - if that leaves holes, the largest buffers first, or those that are largest and live longest,
//   where that needs less.
ArenaLayout LayOutArena(std::span<const Lifetime> lifetimes, int64_t alignment, int64_t enough = 0);

}  // namespace shoal::plan

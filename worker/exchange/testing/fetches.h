// Counts the fetches that a source over the service must make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace shoal::worker {

// Fetches follow from the order of a step alone: those of a cache that takes each use when
// `prefetch` uses before are requested, and keeps it until it is over (or for the step).
inline int64_t FetchesOf(const std::vector<int>& uses, int64_t prefetch, bool keep) {
  int64_t fetches = 0;
  std::vector<int> held(4, 0);
  std::vector<bool> ever(4, false);
  size_t taken = 0;
  for (size_t use = 0; use < uses.size(); ++use) {
    for (; taken < uses.size() && taken <= use + static_cast<size_t>(prefetch); ++taken) {
      const auto unit = static_cast<size_t>(uses[taken]);
      fetches += held[unit]++ == 0 && !(keep && ever[unit]) ? 1 : 0;
      ever[unit] = true;
    }
    --held[static_cast<size_t>(uses[use])];
  }
  return fetches;
}

}  // namespace shoal::worker

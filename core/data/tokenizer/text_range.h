// A stretch of a text.
#pragma once

#include <cstddef>

namespace shoal::worker {

// Bytes [begin, end).
struct TextRange {
  size_t begin = 0;
  size_t end = 0;

  bool operator==(const TextRange&) const = default;
};

}  // namespace shoal::worker

// In how many partial sums a norm's backward leaves its weight's gradient: one for each of as many
// runs of neighbouring rows. A GPU has one block for each, so there are at most as many as run
// concurrently on 132 multiprocessors with two blocks each. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shoal::plan {

constexpr int64_t RowsPerNormPartial(int64_t rows) {
  constexpr int64_t kLeastRows = 16;
  constexpr int64_t kMostPartials = 264;
  return std::max(kLeastRows, (rows + kMostPartials - 1) / kMostPartials);
}

constexpr int64_t NormPartials(int64_t rows) {
  const int64_t each = RowsPerNormPartial(rows);
  return (rows + each - 1) / each;
}

}  // namespace shoal::plan

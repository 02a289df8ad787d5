// Which elements of a matrix dropout keeps: a function of the step, of the token (its sample and
// its place there), of the matrix and of the column. So it is the same in every pass over a sample
// in that step, in whatever microbatch and wherever that is computed.
//
// Element c of row t is kept if word c % 4 of Philox4x32 is at least probability x 2^32, whose key
// is the seed and whose counter is (step, sample, position, matrix x 2^16 + c / 4).
#pragma once

#include <cstdint>
#include <span>

namespace shoal::worker {

struct DropoutRow {
  uint32_t sample = 0;    // the low bits of its number
  uint32_t position = 0;  // in the sample; the two sequences of a pair are one after the other
};

struct DropoutMask {
  double probability = 0;  // of being dropped, below 1; 0: all are kept
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t matrix = 0;               // below 2^16
  std::span<const DropoutRow> rows;  // host; [T]
};

}  // namespace shoal::worker

// Parts of softmax over long rows, in device code: chunks of a row's logits, sums of their
// exponentials, and their gradients. Only for cross_entropy.cu.
#pragma once

#include <cfloat>

#include "worker/ops/cuda/kernels/activations.h"
#include "worker/ops/cuda/kernels/elements.h"

namespace shoal::worker::cuda {

inline constexpr float kLog2E = 1.44269504088896341f;
inline constexpr float kMinusInfinity = -__builtin_inff();

// The largest of some logits, not less than the lowest number, and the sum of exp(logit - largest).
// A logit that is not finite makes the sum NaN.
struct Exponentials {
  float largest = -FLT_MAX;
  float sum = 0;
};
SHOAL_DEVICE float ExpOf(float difference) { return Exp2Approximate(difference * kLog2E); }
SHOAL_DEVICE Exponentials Join(const Exponentials& a, const Exponentials& b) {
  const float largest = a.largest > b.largest ? a.largest : b.largest;
  return {largest, a.sum * ExpOf(a.largest - largest) + b.sum * ExpOf(b.largest - largest)};
}
// Joins all lanes, in a fixed order.
SHOAL_DEVICE Exponentials JoinLanes(const Exponentials& mine) {
  const float largest = WarpMax(mine.largest);
  return {largest, WarpSum(mine.sum * ExpOf(mine.largest - largest))};
}
// Joins all parts of a row, in order.
SHOAL_DEVICE Exponentials JoinParts(const Exponentials* parts, int64_t count) {
  Exponentials all = parts[0];
  for (int64_t i = 1; i < count; ++i) {
    all = Join(all, parts[i]);
  }
  return all;
}

// Chunks of a row that a thread loads at once.
inline constexpr int kChunks = 4;

// A thread's chunks from `column` on, kStep apart, of the columns before `end`, capped if there is
// a cap. Chunks start at multiples of their size; beyond `end` the last one holds minus infinity.
template <int kStep, int kCount>
SHOAL_DEVICE void LoadLogits(const float* row, int64_t column, int64_t end, float softcap,
                             float (&x)[kChunks][kCount]) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int64_t at = column + i * kStep;
    if (at + kCount <= end) {
      LoadFloats<float>(row, at, x[i]);
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        x[i][j] = at + j < end ? row[at + j] : kMinusInfinity;
      }
    }
  }
  if (softcap > 0) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        x[i][j] = column + i * kStep + j < end ? SoftCap(x[i][j], softcap) : kMinusInfinity;
      }
    }
  }
}

template <int kCount>
SHOAL_DEVICE void AddLogits(const float (&x)[kChunks][kCount], Exponentials& mine) {
  float largest = mine.largest;
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      largest = x[i][j] > largest ? x[i][j] : largest;
    }
  }
  mine = {largest, mine.sum * ExpOf(mine.largest - largest)};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      mine.sum += ExpOf(x[i][j] - largest);
    }
  }
}

// The row's constants for turning logits, capped if there is a cap, into gradients.
struct RowGradient {
  float largest = 0;
  float inverse_sum = 1;
  float scale = 1;
  float softcap = 0;
  int64_t label = -1;

  template <int kCount>
  SHOAL_DEVICE void Apply(int64_t column, float (&x)[kCount]) const {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const float probability = ExpOf(x[j] - largest) * inverse_sum;
      const float gradient = (column + j == label ? probability - 1.0f : probability) * scale;
      x[j] = softcap > 0 ? gradient * SoftCapSlope(x[j], softcap) : gradient;
    }
  }
};

// Handles the chunk at `column`, up to `end`; in one store if `whole` and the chunk ends before
// that.
template <typename T, int kCount>
SHOAL_DEVICE void StoreGradients(const float (&x)[kCount], T* row, int64_t column, int64_t end,
                                 bool whole) {
  if (whole && column + kCount <= end) {
    StoreFloats<T>(x, row, column);
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    if (column + j < end) {
      row[column + j] = FromFloat<T>(x[j]);
    }
  }
}

}  // namespace shoal::worker::cuda

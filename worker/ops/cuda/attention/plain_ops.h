// What the plain attention kernels share. A warp has one row (or key): for the scores each lane
// takes one key (row); for the sums each takes one column, 32 at a time. The sums lie in shared
// memory, every element used by only one lane.
#pragma once

#include <cmath>

#include "worker/ops/cuda/attention/elements.h"
#include "worker/ops/cuda/attention/tile_ops.h"

namespace shoal::worker::cuda {

// Sums `count` rows times their lanes' weights:
//   sums[j] = sums[j] * correction + weight of lane i * source(i)[j].
template <typename T, typename Source>
SHOAL_DEVICE void AddWeighted(float* sums, float correction, float weight, int count, int columns,
                              const Source& source) {
  for (int first = 0; first < columns; first += kWarp) {
    const int column = first + LaneIndex();
    float sum = column < columns ? sums[column] * correction : 0.0f;
    for (int i = 0; i < count; ++i) {
      const float each = Shuffle(weight, i);
      if (column < columns) {
        sum += each * ToFloat(source(i)[column]);
      }
    }
    if (column < columns) {
      sums[column] = sum;
    }
  }
}

SHOAL_DEVICE void ZeroSums(float* sums, int columns) {
  for (int column = LaneIndex(); column < columns; column += kWarp) {
    sums[column] = 0;
  }
}

template <typename T>
SHOAL_DEVICE void StoreSums(const float* sums, float factor, int columns, T* to) {
  for (int column = LaneIndex(); column < columns; column += kWarp) {
    to[column] = FromFloat<T>(sums[column] * factor);
  }
}

// Attention of one query over keys [begin, end): `sums` still have to be divided by the sum of
// weights.
struct SoftmaxState {
  float maximum = -INFINITY;  // of scaled scores, in units of log2
  float sum = 0;
};
template <typename T, int kElements, typename Key, typename Value>
SHOAL_DEVICE SoftmaxState AttendRow(const T* query, int begin, int end, int columns, float scale,
                                    float* sums, const Key& key, const Value& value) {
  SoftmaxState state;
  ZeroSums(sums, columns);
  for (int first = begin; first < end; first += kWarp) {
    const int own = first + LaneIndex();
    const int count = Smaller(kWarp, end - first);
    const float score = own < end ? Dot<T, kElements>(query, key(own), columns) * scale : -INFINITY;
    const float largest = fmaxf(state.maximum, WarpMax(score));
    const float correction = Exp2(state.maximum - largest);
    const float weight = Exp2(score - largest);
    state.sum = state.sum * correction + WarpSum(weight);
    state.maximum = largest;
    AddWeighted<T>(sums, correction, weight, count, columns,
                   [&](int i) { return value(first + i); });
  }
  return state;
}

}  // namespace shoal::worker::cuda

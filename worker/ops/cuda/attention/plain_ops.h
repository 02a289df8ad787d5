// What the plain attention kernels share. A warp has one row (or key): for the scores each lane
// takes one key (row); for the sums each takes one column, 32 at a time. The sums lie in shared
// memory, every element used by only one lane.
#pragma once

#include <cmath>

#include "worker/ops/cuda/attention/elements.h"
#include "worker/ops/cuda/attention/tile_ops.h"
#include "worker/ops/cuda/kernels/activations.h"

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

// A score and what its gradient is multiplied by to give that of the product of query and key, but
// for the problem's scale.
struct Score {
  float log2;  // in units of log2
  float slope;
};
SHOAL_DEVICE Score ScoreOf(const AttentionProblem& problem, float product) {
  if (problem.softcap == 0) {
    return {product * (problem.scale * kLog2OfE), 1.0f};
  }
  const float capped = SoftCap(product * problem.scale, problem.softcap);
  return {capped * kLog2OfE, SoftCapSlope(capped, problem.softcap)};
}

// Attention of one query over keys [begin, end): `sums` still have to be divided by the sum of
// weights.
struct SoftmaxState {
  float maximum = -INFINITY;  // of scaled scores, in units of log2
  float sum = 0;
};
template <typename T, int kElements, typename Key, typename Value>
SHOAL_DEVICE SoftmaxState AttendRow(const AttentionProblem& problem, const T* query, int begin,
                                    int end, float* sums, const Key& key, const Value& value) {
  const int columns = problem.head_dim;
  SoftmaxState state;
  ZeroSums(sums, columns);
  for (int first = begin; first < end; first += kWarp) {
    const int own = first + LaneIndex();
    const int count = Smaller(kWarp, end - first);
    const float score =
        own < end ? ScoreOf(problem, Dot<T, kElements>(query, key(own), columns)).log2 : -INFINITY;
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

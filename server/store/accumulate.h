// Adds gradients up: the kernels behind every push, and the statistics of their sum at the end of a
// step. Pure functions over raw arrays: `count` elements, no alignment needed, no overlap.
// Thread-safe.
//
// Two kinds of accumulator:
// - Float: fp32 += fp32 or bf16, whose rounding depends on the order of arrival.
// - Exact: int64 fixed point with resolution 2^-40. Every gradient is rounded to that once (to
//   nearest, ties to even); from there on sums are integer sums, so any order gives the same bits.
//   The resolution is about 1e-12: an element that small is under Adam's epsilon of 1e-8 by four
//   orders of magnitude.
//
// Exact range: one gradient element must lie within +-2^20 and a sum within +-2^22. What is NaN,
// infinite or out of range is not added but counted as non-finite, and the coordinator refuses a
// step with any such element, as it does one with a NaN in float mode. (Whether a partial sum
// leaves the range can depend on the order; in an accepted step none did.)
#pragma once

#include <cstdint>

#include "core/base/bf16.h"
#include "core/base/simd.h"

namespace shoal::server {

inline constexpr int kExactFractionBits = 40;
inline constexpr double kExactUnit = 0x1p-40;
inline constexpr float kExactMaxElement = 0x1p20f;
inline constexpr int64_t kExactMaxSum = int64_t{1} << 62;  // 2^22 in units of 2^-40

// Elements of one partial sum of squares. Chunks start at multiples of this within a partition, so
// the sum depends neither on threads nor on how partitions are spread over servers.
inline constexpr int64_t kReductionChunk = 8192;

struct GradientStatistics {
  double sum_of_squares = 0;
  int64_t non_finite = 0;
};

struct AccumulateKernels {
  // accumulator[i] = 0 + gradient[i]: the first push of an attempt, which makes clearing
  // unnecessary.
  void (*set_f32)(const float* gradient, float* accumulator, int64_t count);
  void (*set_bf16)(const BFloat16* gradient, float* accumulator, int64_t count);
  // accumulator[i] += gradient[i].
  void (*add_f32)(const float* gradient, float* accumulator, int64_t count);
  void (*add_bf16)(const BFloat16* gradient, float* accumulator, int64_t count);
  // For exact accumulators; return how many elements were not added.
  int64_t (*add_exact_f32)(const float* gradient, int64_t* accumulator, int64_t count);
  int64_t (*add_exact_bf16)(const BFloat16* gradient, int64_t* accumulator, int64_t count);
  // value[i] = accumulator[i] * 2^-40: the exact sum, rounded once to double and once to float.
  void (*exact_to_float)(const int64_t* accumulator, float* value, int64_t count);
  // Over one reduction chunk: the sum of squares in double, and how many elements are NaN or
  // infinite.
  GradientStatistics (*statistics)(const float* gradient, int64_t count);
};

const AccumulateKernels& GetAccumulateKernels(KernelWidth width = BestKernelWidth());

}  // namespace shoal::server

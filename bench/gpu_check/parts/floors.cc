#include "bench/gpu_check/parts/floors.h"

#include <algorithm>

namespace shoal::bench {
namespace {

constexpr int64_t kElement = 2;
constexpr int64_t kFloat = 4;

}  // namespace

Floor FloorOf(const Cost& cost, const Ceilings& ceilings) {
  const double memory = cost.bytes / ceilings.copy_bytes_per_second;
  const double matrix = cost.flops / ceilings.matrix_flops_per_second;
  return {.seconds = std::max(memory, matrix), .memory_bound = memory >= matrix};
}

Cost BytesCost(int64_t bytes) { return {.bytes = static_cast<double>(bytes)}; }

bool IsReadTwice(int64_t columns) { return columns * kFloat > kMostSharedBytes; }

Cost CrossEntropyCost(int64_t rows, int64_t columns) {
  const int64_t reads = IsReadTwice(columns) ? 2 : 1;
  return BytesCost(rows * columns * (reads * kFloat + kElement));
}

Cost ElementwiseCost(int64_t elements, int64_t read, int64_t written) {
  return BytesCost(elements * kElement * (read + written));
}

Cost MatmulCost(int64_t m, int64_t n, int64_t k, bool added_in_fp32) {
  const int64_t result = m * n * (added_in_fp32 ? 2 * kFloat : kElement);
  Cost cost = BytesCost((m * k + k * n) * kElement + result);
  cost.flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  return cost;
}

Cost AttentionForwardCost(const worker::AttentionShape& shape, int64_t rows,
                          double squared_tokens) {
  Cost cost =
      BytesCost(rows * ((shape.qkv_size() + shape.q_size()) * kElement + shape.heads * kFloat));
  cost.flops = 2 * squared_tokens * static_cast<double>(shape.q_size());
  return cost;
}

Cost AttentionBackwardCost(const worker::AttentionShape& shape, int64_t rows,
                           double squared_tokens) {
  // Reads d_out, out and qkv, writes d_qkv.
  Cost cost = BytesCost(
      rows * ((2 * shape.qkv_size() + 2 * shape.q_size()) * kElement + shape.heads * kFloat));
  cost.flops = 5 * squared_tokens * static_cast<double>(shape.q_size());
  return cost;
}

}  // namespace shoal::bench

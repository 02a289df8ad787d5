// The parts of check_ops.cc: each operator, or a few that belong together, at one size and type.
// Only the files of these checks include it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"
#include "worker/ops/testing/op_checker.h"

namespace shoal::worker {

// Both sides compute in fp32 from the same inputs, so fp32 results differ by rounding and the order
// of sums, and bf16 results by a unit in the last place where that tips a rounding.
inline constexpr double kF32Bound = 3e-5;
inline constexpr double kBF16Bound = 0.8e-2;
// Attention multiplies probabilities that were rounded to bf16.
inline constexpr double kAttentionBF16Bound = 3e-2;
// The largest error among the millions of gradients of long sequences: both sides are off by up to
// half of this compared with doubles (0.06), and by 0.003 typically. The first tokens' gradients
// are sums of large terms, and their small elements keep the roundings.
inline constexpr double kLongAttentionGradientBF16Bound = 0.15;
inline constexpr int64_t kLongAttentionTokens = 256;
// Still longer: typical values are as small as the roundings of the first tokens' values, so this
// bound only catches gross errors.
inline constexpr double kLongestAttentionBound = 0.5;
inline constexpr int64_t kLongestAttentionTokens = 8192;
// The same operations in the same order.
inline constexpr double kSameBits = 0;

inline double Bound(DType dtype) { return dtype == DType::kF32 ? kF32Bound : kBF16Bound; }

struct Size {
  int64_t rows;
  int64_t columns;
  ArrayLayout layout;
};

class Checks {
 public:
  Checks(OpChecker& checker, DType dtype) : checker_(checker), dtype_(dtype) {}
  DType dtype() const { return dtype_; }

  void Norms(const Size& size, int64_t parts = 1, float offset = 0);
  void ColumnSums(const Size& size);
  void Elementwise(const Size& size);
  void Gated(const Size& size);
  void Rows(const Size& size, int64_t vocabulary);
  void Rotary(int64_t tokens, int64_t heads, int64_t head_dim, ArrayLayout layout,
              int64_t dims = 0);
  void CrossEntropy(const Size& size, float softcap = 0);
  void Matmul(int64_t m, int64_t n, int64_t k, ArrayLayout layout);
  void Attention(const std::vector<int32_t>& lengths, int64_t padding, const AttentionShape& shape);
  void Decode(int64_t length, const AttentionShape& shape);

 private:
  std::string Name(std::string_view op, int64_t rows, int64_t columns) const {
    return fmt::format("{} {} {}x{}", op, dtype_ == DType::kF32 ? "fp32" : "bf16", rows, columns);
  }
  std::string Name(std::string_view op, const Size& size) const {
    return Name(op, size.rows, size.columns) + (size.layout.offset > 0 ? " apart" : "");
  }
  // Includes what is special about the check.
  std::string Name(std::string_view op, const Size& size, std::string_view special) const {
    return fmt::format("{}{}{}", Name(op, size), special.empty() ? "" : ", ", special);
  }
  CheckedArray Normal(const Size& size, double deviation = 1) {
    return checker_.Normal(dtype_, size.rows, size.columns, deviation, size.layout);
  }
  CheckedArray Output(const Size& size) {
    return checker_.Output(dtype_, size.rows, size.columns, size.layout);
  }
  std::vector<int32_t> Below(int64_t count, int64_t bound) {
    std::vector<int32_t> values(static_cast<size_t>(count));
    for (int32_t& value : values) {
      value = static_cast<int32_t>(checker_.random().Below(static_cast<uint64_t>(bound)));
    }
    return values;
  }

  OpChecker& checker_;
  const DType dtype_;
};

}  // namespace shoal::worker

// Matrix products and attention.
#include <utility>

#include "fmt/format.h"
#include "worker/ops/testing/op_checks.h"

namespace shoal::worker {

void Checks::Matmul(int64_t m, int64_t n, int64_t k, ArrayLayout layout) {
  for (const std::pair<bool, bool>& transposed :
       {std::pair(false, false), std::pair(false, true), std::pair(true, false)}) {
    const bool transpose_a = transposed.first;
    const bool transpose_b = transposed.second;
    CheckedArray a = Normal({transpose_a ? k : m, transpose_a ? m : k, layout});
    CheckedArray b = Normal({transpose_b ? n : k, transpose_b ? k : n, layout});
    const std::string name = fmt::format(
        "Matmul {} {}x{}x{}{}{}{}", dtype_ == DType::kF32 ? "fp32" : "bf16", m, n, k,
        transpose_a ? " At" : "", transpose_b ? " Bt" : "", layout.offset > 0 ? " apart" : "");
    CheckedArray addend = Normal({m, n, layout});
    const auto check = [&](std::string_view what, double bound, CheckedArray& c,
                           bool accumulate = false, CheckedArray* added = nullptr) {
      checker_.Check(fmt::format("{}{}", name, what), bound, {&c}, [&](Ops& ops, OpSide s) {
        ops.Matmul({.a = a.matrix(s),
                    .b = b.matrix(s),
                    .c = c.matrix(s),
                    .transpose_a = transpose_a,
                    .transpose_b = transpose_b,
                    .accumulate = accumulate,
                    .addend = added == nullptr ? ConstMatrix() : added->matrix(s)});
      });
    };
    CheckedArray c = Output({m, n, layout});
    check("", Bound(dtype_), c);
    check(", with an addend", Bound(dtype_), c, false, &addend);
    CheckedArray sums = checker_.Output(DType::kF32, m, n, layout);
    check(", to fp32", kF32Bound, sums);
    check(", ADDED", kF32Bound, sums, true);
  }
}

void Checks::Attention(const std::vector<int32_t>& lengths, int64_t padding,
                       const AttentionShape& shape) {
  std::vector<int32_t> cu_seqlens = {0};
  for (const int32_t length : lengths) {
    cu_seqlens.push_back(cu_seqlens.back() + length);
  }
  const int64_t tokens = cu_seqlens.back() + padding;
  CheckedArray qkv = Normal({tokens, shape.qkv_size(), {}});
  CheckedArray out = Output({tokens, shape.q_size(), {}});
  CheckedArray log_sum_exp = checker_.Output(DType::kF32, shape.heads, tokens);
  const bool longest = tokens >= kLongestAttentionTokens;
  const double bound = longest                 ? kLongestAttentionBound
                       : dtype_ == DType::kF32 ? kF32Bound
                                               : kAttentionBF16Bound;
  const auto name = [&](std::string_view op) {
    return fmt::format("{} {} {} tokens, {}/{}x{}{}", op, dtype_ == DType::kF32 ? "fp32" : "bf16",
                       tokens, shape.heads, shape.kv_heads, shape.head_dim,
                       (shape.window > 0 ? fmt::format(", window {}", shape.window) : "") +
                           (shape.softcap > 0 ? fmt::format(", softcap {}", shape.softcap) : ""));
  };
  checker_.Check(name("AttentionForward"), bound, {&out, &log_sum_exp}, [&](Ops& ops, OpSide s) {
    ops.AttentionForward(qkv.matrix(s), shape, cu_seqlens, out.matrix(s),
                         log_sum_exp.data<float>(s));
  });
  CheckedArray d_out = Normal({tokens, shape.q_size(), {}});
  CheckedArray d_qkv = Output({tokens, shape.qkv_size(), {}});
  const double gradient_bound = dtype_ == DType::kBF16 && tokens > kLongAttentionTokens && !longest
                                    ? kLongAttentionGradientBF16Bound
                                    : bound;
  const auto backward = [&](std::string_view what, double most, const auto& rotation_of) {
    checker_.Check(name(what), most, {&d_qkv}, [&](Ops& ops, OpSide s) {
      ops.AttentionBackward(d_out.matrix(s), qkv.matrix(s), out.matrix(s),
                            log_sum_exp.data<float>(s), shape, cu_seqlens, rotation_of(s),
                            d_qkv.matrix(s));
    });
  };
  backward("AttentionBackward", gradient_bound, [](OpSide) { return Rotation(); });
  if (longest) {
    return;
  }
  constexpr int64_t kPositions = 100;
  CheckedArray positions = checker_.Integers(Below(tokens, kPositions));
  CheckedArray cosines = checker_.Normal(DType::kF32, kPositions, shape.head_dim / 2, 0.7);
  CheckedArray sines = checker_.Normal(DType::kF32, kPositions, shape.head_dim / 2, 0.7);
  // An element also gets the rounding errors of its pair's other one, which may be larger.
  backward("AttentionBackwardTurned", 2 * gradient_bound, [&](OpSide s) {
    return Rotation{.positions = positions.data<int32_t>(s),
                    .cosines = cosines.data<float>(s),
                    .sines = sines.data<float>(s)};
  });
  // The tables serve for a part of each head as well.
  backward("AttentionBackwardPartlyTurned", 2 * gradient_bound, [&](OpSide s) {
    return Rotation{.positions = positions.data<int32_t>(s),
                    .cosines = cosines.data<float>(s),
                    .sines = sines.data<float>(s),
                    .dims = shape.head_dim / 4 * 2};
  });
}

void Checks::Decode(int64_t length, const AttentionShape& shape) {
  CheckedArray q = Normal({1, shape.q_size(), {}});
  CheckedArray keys = Normal({length, shape.kv_size(), {}});
  CheckedArray values = Normal({length, shape.kv_size(), {}});
  CheckedArray out = Output({1, shape.q_size(), {}});
  checker_.Check(
      Name("AttentionDecode", length, shape.q_size()),
      dtype_ == DType::kF32 ? kF32Bound : kAttentionBF16Bound, {&out}, [&](Ops& ops, OpSide s) {
        ops.AttentionDecode(q.matrix(s), keys.matrix(s), values.matrix(s), shape, out.matrix(s));
      });
}

}  // namespace shoal::worker

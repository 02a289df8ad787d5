#include "worker/ops/testing/check_ops.h"

#include <algorithm>
#include <numeric>
#include <string_view>

#include "fmt/format.h"

namespace shoal::worker {
namespace {

// Both sides compute in fp32 from the same inputs, so fp32 results differ by rounding and the order
// of sums, and bf16 results by a unit in the last place where that tips a rounding.
constexpr double kF32Bound = 3e-5;
constexpr double kBF16Bound = 0.8e-2;
// Attention multiplies probabilities that were rounded to bf16.
constexpr double kAttentionBF16Bound = 3e-2;
// The same operations in the same order.
constexpr double kSameBits = 0;

double Bound(DType dtype) { return dtype == DType::kF32 ? kF32Bound : kBF16Bound; }

struct Size {
  int64_t rows;
  int64_t columns;
  ArrayLayout layout;
};

class Checks {
 public:
  Checks(OpChecker& checker, DType dtype) : checker_(checker), dtype_(dtype) {}

  void Norms(const Size& size);
  void ColumnSums(const Size& size);
  void Elementwise(const Size& size);
  void SwiGlu(const Size& size);
  void Rows(const Size& size, int64_t vocabulary);
  void Rotary(int64_t tokens, int64_t heads, int64_t head_dim, ArrayLayout layout);
  void CrossEntropy(const Size& size);
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

void Checks::Norms(const Size& size) {
  constexpr double kEpsilon = 1e-5;
  CheckedArray x = Normal(size);
  CheckedArray delta = Normal(size);
  CheckedArray weight = checker_.Normal(dtype_, 1, size.columns);
  CheckedArray y = Output(size);
  CheckedArray sum = Output(size);
  CheckedArray d_x = Output(size);
  CheckedArray inverse_rms = checker_.Output(DType::kF32, 1, size.rows);
  const double bound = Bound(dtype_);
  checker_.Check(Name("RmsNormForward", size), bound, {&y, &inverse_rms}, [&](Ops& ops, OpSide s) {
    ops.RmsNormForward(x.matrix(s), weight.vector(s), kEpsilon, y.matrix(s),
                       inverse_rms.data<float>(s));
  });
  const auto add = [&](std::string_view what, CheckedArray& to) {
    checker_.Check(Name(what, size), bound, {&to, &y, &inverse_rms}, [&](Ops& ops, OpSide s) {
      ops.AddRmsNormForward(x.matrix(s), delta.matrix(s), weight.vector(s), kEpsilon, to.matrix(s),
                            y.matrix(s), inverse_rms.data<float>(s));
    });
  };
  add("AddRmsNormForward", sum);
  add("AddRmsNormForward, sum = delta", delta);
  add("AddRmsNormForward, sum = x", x);
  CheckedArray d_y = Normal(size);
  CheckedArray residual = Normal(size);
  const auto backward = [&](std::string_view what, CheckedArray* added, CheckedArray& to) {
    checker_.Check(Name(what, size), bound, {&to}, [&](Ops& ops, OpSide s) {
      ops.RmsNormBackwardInput(d_y.matrix(s), x.matrix(s), weight.vector(s),
                               inverse_rms.data<float>(s),
                               added == nullptr ? ConstMatrix() : added->matrix(s), to.matrix(s));
    });
  };
  backward("RmsNormBackwardInput", nullptr, d_x);
  backward("RmsNormBackwardInput, residual", &residual, d_x);
  backward("RmsNormBackwardInput, d_x = residual", &residual, residual);
  backward("RmsNormBackwardInput, d_x = d_y", &residual, d_y);
}

void Checks::ColumnSums(const Size& size) {
  CheckedArray d_y = Normal(size);
  CheckedArray x = Normal(size);
  CheckedArray inverse_rms = checker_.Normal(DType::kF32, 1, size.rows);
  CheckedArray sums = checker_.Normal(DType::kF32, 1, size.columns);
  checker_.Check(Name("BiasBackward", size), kF32Bound, {&sums},
                 [&](Ops& ops, OpSide s) { ops.BiasBackward(d_y.matrix(s), sums.data<float>(s)); });
  checker_.Check(Name("RmsNormBackwardWeight", size), kF32Bound, {&sums}, [&](Ops& ops, OpSide s) {
    ops.RmsNormBackwardWeight(d_y.matrix(s), x.matrix(s), inverse_rms.data<float>(s),
                              sums.data<float>(s));
  });
}

void Checks::Elementwise(const Size& size) {
  CheckedArray a = Normal(size);
  CheckedArray b = Normal(size);
  CheckedArray out = Output(size);
  CheckedArray bias = checker_.Normal(dtype_, 1, size.columns);
  const auto add = [&](std::string_view what, CheckedArray& to) {
    checker_.Check(Name(what, size), kSameBits, {&to},
                   [&](Ops& ops, OpSide s) { ops.Add(a.matrix(s), b.matrix(s), to.matrix(s)); });
  };
  add("Add", out);
  add("Add, out = a", a);
  checker_.Check(Name("AddBias", size), kSameBits, {&b},
                 [&](Ops& ops, OpSide s) { ops.AddBias(bias.vector(s), b.matrix(s)); });
  for (const DType to : {DType::kF32, DType::kBF16}) {
    CheckedArray converted = checker_.Output(to, size.rows, size.columns, size.layout);
    checker_.Check(Name(to == DType::kF32 ? "Convert to fp32" : "Convert to bf16", size), kSameBits,
                   {&converted},
                   [&](Ops& ops, OpSide s) { ops.Convert(a.matrix(s), converted.matrix(s)); });
  }
  checker_.Check(Name("Zero", size), kSameBits, {&out},
                 [&](Ops& ops, OpSide s) { ops.Zero(out.matrix(s)); });
}

void Checks::SwiGlu(const Size& size) {
  const Size twice = {size.rows, 2 * size.columns, size.layout};
  CheckedArray gate_up = Normal(twice, 3.0);
  CheckedArray d_out = Normal(size);
  CheckedArray out = Output(size);
  CheckedArray d_gate_up = Output(twice);
  checker_.Check(Name("SwiGluForward", size), Bound(dtype_), {&out},
                 [&](Ops& ops, OpSide s) { ops.SwiGluForward(gate_up.matrix(s), out.matrix(s)); });
  checker_.Check(Name("SwiGluBackward", size), Bound(dtype_), {&d_gate_up},
                 [&](Ops& ops, OpSide s) {
                   ops.SwiGluBackward(d_out.matrix(s), gate_up.matrix(s), d_gate_up.matrix(s));
                 });
}

void Checks::Rows(const Size& size, int64_t vocabulary) {
  const int64_t count = size.rows - size.rows / 8;  // the rest is padding
  CheckedArray table = Normal({vocabulary, size.columns, size.layout});
  CheckedArray out = Output(size);
  // Half of the tokens are one id, as in text some are.
  std::vector<int32_t> ids = Below(count, vocabulary);
  for (size_t i = 0; i < ids.size(); i += 2) {
    ids[i] = static_cast<int32_t>(vocabulary / 2);
  }
  CheckedArray tokens = checker_.Integers(ids);
  checker_.Check(Name("EmbeddingForward", size), kSameBits, {&out}, [&](Ops& ops, OpSide s) {
    ops.EmbeddingForward(tokens.data<int32_t>(s), count, table.matrix(s), out.matrix(s));
  });
  CheckedArray d_table = checker_.Normal(DType::kF32, vocabulary, size.columns, 1, size.layout);
  checker_.Check(Name("EmbeddingBackward", size), kSameBits, {&d_table}, [&](Ops& ops, OpSide s) {
    ops.EmbeddingBackward(tokens.data<int32_t>(s), count, out.matrix(s), d_table.matrix(s));
  });

  std::vector<int32_t> chosen(static_cast<size_t>(vocabulary));
  std::iota(chosen.begin(), chosen.end(), 0);
  checker_.random().Shuffle(chosen);
  const int64_t distinct = std::min(count, vocabulary);
  chosen.resize(static_cast<size_t>(distinct));
  CheckedArray rows = checker_.Integers(chosen);
  checker_.Check(Name("GatherRows", size), kSameBits, {&out}, [&](Ops& ops, OpSide s) {
    ops.GatherRows(table.matrix(s), rows.data<int32_t>(s), distinct, out.matrix(s));
  });
  CheckedArray scattered = Normal({vocabulary, size.columns, size.layout});
  checker_.Check(Name("ScatterRows", size), kSameBits, {&scattered}, [&](Ops& ops, OpSide s) {
    ops.ScatterRows(out.matrix(s), rows.data<int32_t>(s), distinct, scattered.matrix(s));
  });
}

void Checks::Rotary(int64_t tokens, int64_t heads, int64_t head_dim, ArrayLayout layout) {
  constexpr int64_t kPositions = 100;
  const int64_t columns = (heads + 1) * head_dim;  // the last head is not turned
  CheckedArray x = Normal({tokens, columns, layout});
  CheckedArray positions = checker_.Integers(Below(tokens, kPositions));
  CheckedArray cosines = checker_.Normal(DType::kF32, kPositions, head_dim / 2);
  CheckedArray sines = checker_.Normal(DType::kF32, kPositions, head_dim / 2);
  for (const bool backward : {false, true}) {
    const std::string name =
        Name(backward ? "RotaryBackward" : "RotaryForward", {tokens, columns, layout});
    checker_.Check(name, Bound(dtype_), {&x}, [&](Ops& ops, OpSide s) {
      const auto* at = positions.data<int32_t>(s);
      if (backward) {
        ops.RotaryBackward(x.matrix(s), heads, head_dim, at, cosines.data<float>(s),
                           sines.data<float>(s));
      } else {
        ops.RotaryForward(x.matrix(s), heads, head_dim, at, cosines.data<float>(s),
                          sines.data<float>(s));
      }
    });
  }
}

void Checks::CrossEntropy(const Size& size) {
  const int64_t count = size.rows - size.rows / 8;
  CheckedArray logits = checker_.Normal(DType::kF32, size.rows, size.columns, 4.0, size.layout);
  CheckedArray labels = checker_.Integers(Below(count, size.columns));
  CheckedArray d_logits = Output(size);
  CheckedArray loss = checker_.Double(100);
  const auto run = [&](Ops& ops, OpSide s, CheckedArray* gradient) {
    ops.SoftmaxCrossEntropy(logits.matrix(s), labels.data<int32_t>(s), count, 0.25f,
                            gradient == nullptr ? Matrix() : gradient->matrix(s),
                            loss.data<double>(s));
  };
  checker_.Check(Name("SoftmaxCrossEntropy", size), Bound(dtype_), {&d_logits},
                 [&](Ops& ops, OpSide s) { run(ops, s, &d_logits); }, {&logits, &loss});
  checker_.Check(Name("SoftmaxCrossEntropy, the loss", size), kF32Bound, {&loss},
                 [&](Ops& ops, OpSide s) { run(ops, s, nullptr); }, {&logits});
  if (dtype_ == DType::kF32) {
    checker_.Check(Name("SoftmaxCrossEntropy, d_logits = logits", size), kF32Bound, {&logits},
                   [&](Ops& ops, OpSide s) { run(ops, s, &logits); }, {&loss});
  }
}

void Checks::Matmul(int64_t m, int64_t n, int64_t k, ArrayLayout layout) {
  for (const auto& [transpose_a, transpose_b] :
       {std::pair(false, false), std::pair(false, true), std::pair(true, false)}) {
    CheckedArray a = Normal({transpose_a ? k : m, transpose_a ? m : k, layout});
    CheckedArray b = Normal({transpose_b ? n : k, transpose_b ? k : n, layout});
    const std::string name = fmt::format(
        "Matmul{}{} {} {}x{}x{}{}", transpose_a ? " At" : "", transpose_b ? " Bt" : "",
        dtype_ == DType::kF32 ? "fp32" : "bf16", m, n, k, layout.offset > 0 ? " apart" : "");
    const auto check = [&](std::string_view what, double bound, CheckedArray& c, bool accumulate) {
      checker_.Check(fmt::format("{}{}", name, what), bound, {&c}, [&](Ops& ops, OpSide s) {
        ops.Matmul({.a = a.matrix(s),
                    .b = b.matrix(s),
                    .c = c.matrix(s),
                    .transpose_a = transpose_a,
                    .transpose_b = transpose_b,
                    .accumulate = accumulate});
      });
    };
    CheckedArray c = Output({m, n, layout});
    check("", Bound(dtype_), c, false);
    CheckedArray sums = checker_.Output(DType::kF32, m, n, layout);
    check(", to fp32", kF32Bound, sums, false);
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
  const double bound = dtype_ == DType::kF32 ? kF32Bound : kAttentionBF16Bound;
  const auto name = [&](std::string_view op) {
    return fmt::format("{} {} {} tokens, {}/{}x{}", op, dtype_ == DType::kF32 ? "fp32" : "bf16",
                       tokens, shape.heads, shape.kv_heads, shape.head_dim);
  };
  checker_.Check(name("AttentionForward"), bound, {&out, &log_sum_exp}, [&](Ops& ops, OpSide s) {
    ops.AttentionForward(qkv.matrix(s), shape, cu_seqlens, out.matrix(s),
                         log_sum_exp.data<float>(s));
  });
  CheckedArray d_out = Normal({tokens, shape.q_size(), {}});
  CheckedArray d_qkv = Output({tokens, shape.qkv_size(), {}});
  checker_.Check(name("AttentionBackward"), bound, {&d_qkv}, [&](Ops& ops, OpSide s) {
    ops.AttentionBackward(d_out.matrix(s), qkv.matrix(s), out.matrix(s), log_sum_exp.data<float>(s),
                          shape, cu_seqlens, d_qkv.matrix(s));
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

// A layout in which nothing starts where 16 bytes could be read.
constexpr ArrayLayout kApart = {.padding = 6, .offset = 3};
// Columns of a wider matrix, aligned.
constexpr ArrayLayout kWithin = {.padding = 32, .offset = 16};

void CheckSmall(Checks& checks) {
  for (const Size& size :
       {Size{19, 75, kApart}, Size{37, 72, {}}, Size{5, 136, kWithin}, Size{3, 1, {}}}) {
    checks.Norms(size);
    checks.ColumnSums(size);
    checks.Elementwise(size);
    checks.SwiGlu(size);
  }
  checks.Norms({5, 2568, {}});  // several warps a row
  checks.Norms({2, 8200, {}});  // too long for registers
  checks.ColumnSums({300, 40, {}});
  checks.Rows({130, 75, kApart}, 40);
  checks.Rows({1200, 8, {}}, 3000);  // several tiles of tokens and two digits of ids
  checks.Rotary(9, 5, 16, {});
  checks.Rotary(5, 3, 6, kApart);
  checks.CrossEntropy({10, 101, kApart});
  checks.CrossEntropy({9, 9000, {}});  // several blocks a row
  checks.Matmul(70, 45, 33, kApart);
  checks.Matmul(72, 136, 64, {});
  checks.Attention({5, 33, 1}, 6, {.heads = 4, .kv_heads = 2, .head_dim = 16});
  checks.Attention({70}, 0, {.heads = 2, .kv_heads = 2, .head_dim = 10});
  checks.Decode(37, {.heads = 4, .kv_heads = 2, .head_dim = 16});
}

void CheckLarge(Checks& checks) {
  for (const Size& size :
       {Size{1021, 2048, {}}, Size{517, 1027, kApart}, Size{768, 4096, kWithin}}) {
    checks.Norms(size);
    checks.ColumnSums(size);
    checks.Elementwise(size);
    checks.SwiGlu(size);
  }
  checks.Norms({77, 8192, {}});
  checks.Norms({33, 20000, {}});
  checks.ColumnSums({8192, 768, {}});
  checks.Rows({4096, 1024, {}}, 50257);
  checks.Rows({2000, 515, kApart}, 1000);
  checks.Rotary(1000, 40, 128, {});
  checks.Rotary(300, 12, 64, kWithin);
  checks.CrossEntropy({128, 50257, {}});
  checks.CrossEntropy({64, 128256, {}});
  checks.Matmul(512, 1024, 768, {});
  checks.Matmul(509, 331, 257, kApart);
  checks.Matmul(2048, 2048, 2048, kWithin);
  for (const int64_t head_dim : {64, 128}) {
    checks.Attention({700, 1, 257, 1024}, 66, {.heads = 8, .kv_heads = 2, .head_dim = head_dim});
  }
  checks.Attention({300, 212}, 0, {.heads = 6, .kv_heads = 6, .head_dim = 80});
  checks.Decode(3000, {.heads = 32, .kv_heads = 8, .head_dim = 128});
}

}  // namespace

std::vector<OpCheck> CheckOps(Device& device, Ops& under_test, Ops& oracle, uint64_t seed,
                              CheckScale scale) {
  OpChecker checker(device, under_test, oracle, seed);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Checks checks(checker, dtype);
    scale == CheckScale::kSmall ? CheckSmall(checks) : CheckLarge(checks);
  }
  return checker.TakeResults();
}

}  // namespace shoal::worker

// Operators that move memory.
#include <algorithm>
#include <numeric>

#include "core/plan/memory/norm_partials.h"
#include "worker/ops/testing/op_checks.h"

namespace shoal::worker {

void Checks::Norms(const Size& size, int64_t parts, float offset) {
  std::string of_parts = parts == 1 ? "" : fmt::format("in {}", parts);
  of_parts += offset == 0 ? "" : fmt::format("weight + {}", offset);
  constexpr double kEpsilon = 1e-5;
  CheckedArray x = Normal(size);
  CheckedArray weight = checker_.Normal(dtype_, 1, size.columns / parts);
  CheckedArray y = Output(size);
  CheckedArray d_x = Output(size);
  CheckedArray inverse_rms = checker_.Output(DType::kF32, 1, size.rows * parts);
  const double bound = Bound(dtype_);
  CheckedArray residual = Normal(size);
  const auto forward = [&](std::string_view what, CheckedArray* added, CheckedArray& to) {
    checker_.Check(Name("RmsNormForward", size, what), bound, {&to, &inverse_rms},
                   [&](Ops& ops, OpSide s) {
                     ops.RmsNormForward(x.matrix(s), NormWeight(weight.vector(s), offset), kEpsilon,
                                        added == nullptr ? ConstMatrix() : added->matrix(s),
                                        to.matrix(s), inverse_rms.data<float>(s));
                   });
  };
  forward(of_parts, nullptr, y);
  forward("residual", &residual, y);
  forward("y = residual", &residual, residual);
  CheckedArray d_y = Normal(size);
  CheckedArray d_weights =
      checker_.Output(DType::kF32, plan::NormPartials(size.rows), size.columns / parts);
  const auto backward = [&](std::string_view what, CheckedArray* added, CheckedArray& to) {
    checker_.Check(
        Name("RmsNormBackward", size, what), bound, {&to, &d_weights}, [&](Ops& ops, OpSide s) {
          ops.RmsNormBackward(d_y.matrix(s), x.matrix(s), NormWeight(weight.vector(s), offset),
                              inverse_rms.data<float>(s),
                              added == nullptr ? ConstMatrix() : added->matrix(s), to.matrix(s),
                              d_weights.matrix(s));
        });
  };
  checker_.Check(
      Name("RmsNormBackward", size, "d_weights"), kF32Bound, {&d_weights}, [&](Ops& ops, OpSide s) {
        ops.RmsNormBackward(d_y.matrix(s), x.matrix(s), NormWeight(weight.vector(s), offset),
                            inverse_rms.data<float>(s), {}, d_x.matrix(s), d_weights.matrix(s));
      });
  backward(of_parts, nullptr, d_x);
  backward("residual", &residual, d_x);
  backward("d_x = residual", &residual, residual);
  backward("d_x = d_y", &residual, d_y);
}

void Checks::ColumnSums(const Size& size) {
  CheckedArray sums = checker_.Normal(DType::kF32, 1, size.columns);
  const auto check = [&](std::string_view what, CheckedArray& x) {
    checker_.Check(Name("AddColumnSums", size, what), kF32Bound, {&sums}, [&](Ops& ops, OpSide s) {
      ops.AddColumnSums(x.matrix(s), sums.data<float>(s));
    });
  };
  CheckedArray x = Normal(size);
  check("", x);
  if (dtype_ != DType::kF32) {
    CheckedArray floats = checker_.Normal(DType::kF32, size.rows, size.columns, 1, size.layout);
    check("of fp32", floats);
  }
}

void Checks::Elementwise(const Size& size) {
  CheckedArray a = Normal(size);
  CheckedArray b = Normal(size);
  CheckedArray out = Output(size);
  CheckedArray bias = checker_.Normal(dtype_, 1, size.columns);
  checker_.Check(Name("AddBias", size), kSameBits, {&b},
                 [&](Ops& ops, OpSide s) { ops.AddBias(bias.vector(s), b.matrix(s)); });
  checker_.Check(Name("Scale", size), kSameBits, {&a},
                 [&](Ops& ops, OpSide s) { ops.Scale(-1.75f, a.matrix(s)); });
  for (const DType to : {DType::kF32, DType::kBF16}) {
    CheckedArray converted = checker_.Output(to, size.rows, size.columns, size.layout);
    checker_.Check(Name("Convert", size, to == DType::kF32 ? "to fp32" : "to bf16"), kSameBits,
                   {&converted},
                   [&](Ops& ops, OpSide s) { ops.Convert(a.matrix(s), converted.matrix(s)); });
  }
  checker_.Check(Name("Zero", size), kSameBits, {&out},
                 [&](Ops& ops, OpSide s) { ops.Zero(out.matrix(s)); });
}

void Checks::Gated(const Size& size) {
  const Size twice = {size.rows, 2 * size.columns, size.layout};
  CheckedArray gate_up = Normal(twice, 3.0);
  CheckedArray d_out = Normal(size);
  CheckedArray out = Output(size);
  CheckedArray d_gate_up = Output(twice);
  const auto check = [&](std::string_view name, auto forward, auto backward) {
    checker_.Check(Name(fmt::format("{}Forward", name), size), Bound(dtype_), {&out},
                   [&](Ops& ops, OpSide s) { (ops.*forward)(gate_up.matrix(s), out.matrix(s)); });
    const std::string back = fmt::format("{}Backward", name);
    checker_.Check(Name(back, size), Bound(dtype_), {&d_gate_up}, [&](Ops& ops, OpSide s) {
      (ops.*backward)(d_out.matrix(s), gate_up.matrix(s), d_gate_up.matrix(s), {});
    });
    checker_.Check(
        Name(back, size, "out"), Bound(dtype_), {&d_gate_up, &out}, [&](Ops& ops, OpSide s) {
          (ops.*backward)(d_out.matrix(s), gate_up.matrix(s), d_gate_up.matrix(s), out.matrix(s));
        });
  };
  check("SwiGlu", &Ops::SwiGluForward, &Ops::SwiGluBackward);
  check("GeGlu", &Ops::GeGluForward, &Ops::GeGluBackward);
}

void Checks::Rows(const Size& size, int64_t vocabulary) {
  const int64_t count = size.rows - size.rows / 8;  // the rest is padding
  CheckedArray table = Normal({vocabulary, size.columns, size.layout});
  CheckedArray out = Output(size);
  // Half of the tokens share one id, as in text.
  std::vector<int32_t> ids = Below(count, vocabulary);
  for (size_t i = 0; i < ids.size(); i += 2) {
    ids[i] = static_cast<int32_t>(vocabulary / 2);
  }
  CheckedArray tokens = checker_.Integers(ids);
  CheckedArray d_table = checker_.Normal(DType::kF32, vocabulary, size.columns, 1, size.layout);
  for (const float scale : {1.0f, 55.5f}) {
    const std::string_view what = scale == 1 ? "" : "scaled";
    checker_.Check(Name("EmbeddingForward", size, what), kSameBits, {&out},
                   [&](Ops& ops, OpSide s) {
                     ops.EmbeddingForward(tokens.data<int32_t>(s), count, table.matrix(s), scale,
                                          out.matrix(s));
                   });
    checker_.Check(Name("EmbeddingBackward", size, what), kSameBits, {&d_table},
                   [&](Ops& ops, OpSide s) {
                     ops.EmbeddingBackward(tokens.data<int32_t>(s), count, out.matrix(s), scale,
                                           d_table.matrix(s));
                   });
  }

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

void Checks::Rotary(int64_t tokens, int64_t heads, int64_t head_dim, ArrayLayout layout,
                    int64_t dims) {
  constexpr int64_t kPositions = 100;
  const int64_t columns = (heads + 1) * head_dim;  // the last head is not turned
  const int64_t half = (dims > 0 ? dims : head_dim) / 2;
  CheckedArray x = Normal({tokens, columns, layout});
  CheckedArray positions = checker_.Integers(Below(tokens, kPositions));
  CheckedArray cosines = checker_.Normal(DType::kF32, kPositions, half);
  CheckedArray sines = checker_.Normal(DType::kF32, kPositions, half);
  const std::string of_dims = dims == 0 ? "" : fmt::format("{} of each {}", dims, head_dim);
  checker_.Check(Name("RotaryForward", {tokens, columns, layout}, of_dims), Bound(dtype_), {&x},
                 [&](Ops& ops, OpSide s) {
                   ops.RotaryForward(x.matrix(s), heads, head_dim,
                                     {.positions = positions.data<int32_t>(s),
                                      .cosines = cosines.data<float>(s),
                                      .sines = sines.data<float>(s),
                                      .dims = dims});
                 });
}

void Checks::CrossEntropy(const Size& size, float softcap) {
  const int64_t count = size.rows - size.rows / 8;
  CheckedArray logits = checker_.Normal(DType::kF32, size.rows, size.columns, 4.0, size.layout);
  CheckedArray labels = checker_.Integers(Below(count, size.columns));
  CheckedArray weights = checker_.Normal(DType::kF32, 1, count);
  CheckedArray d_logits = Output(size);
  CheckedArray log_probabilities = checker_.Output(DType::kF32, 1, count);
  CheckedArray loss = checker_.Double(100);
  const std::string capped = softcap == 0 ? "" : fmt::format("softcap {} ", softcap);
  const auto run = [&](Ops& ops, OpSide s, CheckedArray* gradient) {
    ops.SoftmaxCrossEntropy(logits.matrix(s),
                            {labels.data<int32_t>(s), weights.data<float>(s), count}, 0.25f,
                            softcap, gradient == nullptr ? Matrix() : gradient->matrix(s),
                            {loss.data<double>(s), log_probabilities.data<float>(s)});
  };
  checker_.Check(Name("SoftmaxCrossEntropy", size, capped), Bound(dtype_), {&d_logits},
                 [&](Ops& ops, OpSide s) { run(ops, s, &d_logits); },
                 {&logits, &loss, &log_probabilities});
  checker_.Check(Name("SoftmaxCrossEntropy", size, capped + "the loss"), kF32Bound,
                 {&loss, &log_probabilities}, [&](Ops& ops, OpSide s) { run(ops, s, nullptr); },
                 {&logits});
  if (dtype_ == DType::kF32) {
    checker_.Check(Name("SoftmaxCrossEntropy", size, capped + "d_logits = logits"), kF32Bound,
                   {&logits}, [&](Ops& ops, OpSide s) { run(ops, s, &logits); },
                   {&loss, &log_probabilities});
  }
}

}  // namespace shoal::worker

#include "worker/model/block.h"

#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/memory/norm_partials.h"

namespace shoal::worker {

using plan::Role;

namespace {

ConstVector Vector(const BlockWeights& weights, int64_t offset, int64_t count) {
  return {static_cast<const std::byte*>(weights.data) + offset * SizeOf(weights.dtype),
          weights.dtype, count};
}

ConstMatrix Weight(const BlockWeights& weights, int64_t offset, int64_t rows, int64_t columns) {
  return ConstMatrix::Dense(Vector(weights, offset, rows * columns).data, weights.dtype, rows,
                            columns);
}

// y[T, out] = x[T, in] weight[out, in]^T, plus the residual [T, out] if given
void Project(Ops& ops, ConstMatrix x, ConstMatrix weight, Matrix y, ConstMatrix residual = {}) {
  ops.Matmul({.a = x, .b = weight, .c = y, .transpose_b = true, .addend = residual});
}

// d_x[T, in] = d_y[T, out] weight[out, in]
void ProjectBackwardInput(Ops& ops, ConstMatrix d_y, ConstMatrix weight, Matrix d_x) {
  ops.Matmul({.a = d_y, .b = weight, .c = d_x});
}

// ADDS d_y[T, out]^T x[T, in] to d_weight[out, in] at `offset` of the gradient, or writes it
void ProjectBackwardWeight(Ops& ops, ConstMatrix d_y, ConstMatrix x, const UnitGradient& gradient,
                           int64_t offset) {
  const Matrix out =
      Matrix::Dense(gradient.sums.data() + offset, DType::kF32, d_y.columns, x.columns);
  ops.Matmul({.a = d_y, .b = x, .c = out, .transpose_a = true, .accumulate = !gradient.empty});
}

// Zeroes everything of an empty gradient except the matrices, which products write: norms and
// biases, which are added to, and the padding.
void ZeroVectors(Ops& ops, const plan::ModelSpec& spec, const BlockLayout& layout,
                 const UnitGradient& gradient) {
  const std::pair<int64_t, int64_t> matrices[] = {
      {layout.qkv, spec.attention().qkv_size() * spec.hidden},
      {layout.output, spec.hidden * spec.attention().q_size()},
      {layout.gate_up, 2 * spec.mlp().intermediate * spec.hidden},
      {layout.down, spec.hidden * spec.mlp().intermediate}};
  const auto zero = [&](int64_t begin, int64_t end) {
    ops.stream().Zero(gradient.sums.data() + begin,
                      (end - begin) * static_cast<int64_t>(sizeof(float)));
  };
  int64_t end = 0;  // of the previous matrix
  for (const auto& [offset, count] : matrices) {
    zero(end, offset);
    end = offset + count;
  }
  zero(end, static_cast<int64_t>(gradient.sums.size()));
}

void AddBias(Ops& ops, const BlockWeights& weights, int64_t offset, Matrix y) {
  if (offset >= 0) {
    ops.AddBias(Vector(weights, offset, y.columns), y);
  }
}

void BiasBackward(Ops& ops, ConstMatrix d_y, int64_t offset, float* accumulator) {
  if (offset >= 0) {
    ops.AddColumnSums(d_y, accumulator + offset);
  }
}

void Attend(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
            const BlockActivations& a) {
  ops.AttentionForward(a.qkv, ShapeOf(weights.kind.attention), sequences.cu_seqlens, a.attention,
                       a.log_sum_exp);
}

// Runs from attention on, up to the input of the activation function.
void ForwardToGateUp(Ops& ops, const BlockWeights& weights, const BlockActivations& a) {
  const plan::ModelSpec& spec = weights.spec;
  const BlockLayout& layout = weights.layout;
  const int64_t intermediate = weights.kind.mlp.intermediate;
  Project(ops, a.attention, Weight(weights, layout.output, spec.hidden, a.attention.columns),
          a.middle, a.input);
  AddBias(ops, weights, layout.output_bias, a.middle);
  ops.RmsNormForward(a.middle, Vector(weights, layout.mlp_norm, spec.hidden), spec.norm_epsilon, {},
                     a.middle_normed, a.middle_inverse_rms);
  Project(ops, a.middle_normed, Weight(weights, layout.gate_up, 2 * intermediate, spec.hidden),
          a.gate_up);
  AddBias(ops, weights, layout.gate_bias, a.gate_up.Columns(0, intermediate));
  AddBias(ops, weights, layout.up_bias, a.gate_up.Columns(intermediate, intermediate));
}

// From the gradient of normed q and k in g.qkv to that of q and k, in place.
void QkNormBackward(Ops& ops, const BlockWeights& weights, const BlockActivations& a,
                    const BlockGradients& g) {
  if (weights.layout.q_norm < 0) {
    return;
  }
  const plan::Attention& attention = weights.kind.attention;
  const auto backward = [&](int64_t column, int64_t columns, int64_t norm, const float* inverse_rms,
                            Matrix d_weights) {
    const Matrix d = g.qkv.Columns(column, columns);
    ops.RmsNormBackward(d, a.qk.Columns(column, columns), Vector(weights, norm, attention.head_dim),
                        inverse_rms, {}, d, d_weights);
  };
  backward(0, attention.q_size(), weights.layout.q_norm, a.q_inverse_rms, g.q_norm);
  backward(attention.q_size(), attention.kv_size(), weights.layout.k_norm, a.k_inverse_rms,
           g.k_norm);
}

// Recomputes what forward made and did not keep, except `activated`, which the activation
// function's backward recomputes.
void Remake(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
            const BlockActivations& a, plan::Recompute recompute) {
  const plan::ModelSpec& spec = weights.spec;
  switch (recompute) {
    case plan::Recompute::kNone:
      return;
    case plan::Recompute::kLight:
      ops.RmsNormForward(a.input, Vector(weights, weights.layout.input_norm, spec.hidden),
                         spec.norm_epsilon, {}, a.input_normed, a.input_inverse_rms);
      ops.RmsNormForward(a.middle, Vector(weights, weights.layout.mlp_norm, spec.hidden),
                         spec.norm_epsilon, {}, a.middle_normed, a.middle_inverse_rms);
      return;
    case plan::Recompute::kFull:
      BlockForwardQkv(ops, weights, sequences, a);
      Attend(ops, weights, sequences, a);
      ForwardToGateUp(ops, weights, a);
      return;
  }
}

}  // namespace

AttentionShape ShapeOf(const plan::Attention& attention) {
  return {.heads = attention.heads, .kv_heads = attention.kv_heads, .head_dim = attention.head_dim};
}

BlockLayout MakeBlockLayout(const plan::UnitSpec& unit) {
  const auto offset = [&](Role role) -> int64_t {
    const plan::TensorSpec* tensor = unit.Find(role);
    return tensor == nullptr ? -1 : tensor->offset;
  };
  const auto follows = [&](Role next, Role tensor) {
    return offset(next) == offset(tensor) + unit.Find(tensor)->count();
  };
  SHOAL_CHECK(follows(Role::kK, Role::kQ) && follows(Role::kV, Role::kK) &&
              follows(Role::kUp, Role::kGate));
  return {.input_norm = offset(Role::kInputNorm),
          .qkv = offset(Role::kQ),
          .q_bias = offset(Role::kQBias),
          .k_bias = offset(Role::kKBias),
          .v_bias = offset(Role::kVBias),
          .q_norm = offset(Role::kQNorm),
          .k_norm = offset(Role::kKNorm),
          .output = offset(Role::kOutput),
          .output_bias = offset(Role::kOutputBias),
          .mlp_norm = offset(Role::kMlpNorm),
          .gate_up = offset(Role::kGate),
          .gate_bias = offset(Role::kGateBias),
          .up_bias = offset(Role::kUpBias),
          .down = offset(Role::kDown),
          .down_bias = offset(Role::kDownBias)};
}

absl::Status ValidateLayout(const plan::ModelSpec& spec) {
  for (const int64_t rows :
       {spec.attention().q_size(), spec.attention().kv_size(), spec.mlp().intermediate}) {
    if (rows * spec.hidden % plan::kTensorAlignment != 0) {
      return InvalidArgument(
          "model: a matrix of {} x {} is not a multiple of {} elements, which this worker needs",
          rows, spec.hidden, plan::kTensorAlignment);
    }
  }
  return absl::OkStatus();
}

BlockActivations BlockActivations::Carve(const ActivationCarvers& carvers,
                                         const plan::ModelSpec& spec, DType compute, int64_t rows) {
  const auto& [input, outputs, attention, rest] = carvers;
  const plan::Attention& attention_of = spec.attention();
  BlockActivations a{};
  a.input = input.TakeMatrix(compute, rows, spec.hidden);
  a.input_inverse_rms = rest.TakeArray<float>(rows);
  a.input_normed = outputs.TakeMatrix(compute, rows, spec.hidden);
  if (attention_of.qk_norm != plan::QkNorm::kNone) {
    a.qk = rest.TakeMatrix(compute, rows, attention_of.q_size() + attention_of.kv_size());
    a.q_inverse_rms = rest.TakeArray<float>(rows * attention_of.heads);
    a.k_inverse_rms = rest.TakeArray<float>(rows * attention_of.kv_heads);
  }
  a.qkv = rest.TakeMatrix(compute, rows, spec.attention().qkv_size());
  a.attention = attention.TakeMatrix(compute, rows, spec.attention().q_size());
  a.log_sum_exp = rest.TakeArray<float>(rows * spec.attention().heads);
  a.middle = rest.TakeMatrix(compute, rows, spec.hidden);
  a.middle_inverse_rms = rest.TakeArray<float>(rows);
  a.middle_normed = outputs.TakeMatrix(compute, rows, spec.hidden);
  a.gate_up = rest.TakeMatrix(compute, rows, 2 * spec.mlp().intermediate);
  a.activated = outputs.TakeMatrix(compute, rows, spec.mlp().intermediate);
  return a;
}

BlockGradients BlockGradients::Carve(Carver& results, Carver& scratch, const plan::ModelSpec& spec,
                                     DType compute, int64_t rows) {
  BlockGradients g;
  const int64_t partials = plan::NormPartials(rows);
  g.gate_up = results.TakeMatrix(compute, rows, 2 * spec.mlp().intermediate);
  g.mlp_norm = results.TakeMatrix(DType::kF32, partials, spec.hidden);
  g.middle = results.TakeMatrix(compute, rows, spec.hidden);
  g.qkv = results.TakeMatrix(compute, rows, spec.attention().qkv_size());
  g.input_norm = results.TakeMatrix(DType::kF32, partials, spec.hidden);
  if (spec.attention().qk_norm != plan::QkNorm::kNone) {
    g.q_norm = results.TakeMatrix(DType::kF32, partials, spec.attention().head_dim);
    g.k_norm = results.TakeMatrix(DType::kF32, partials, spec.attention().head_dim);
  }
  g.middle_normed = scratch.TakeMatrix(compute, rows, spec.hidden);
  g.input_normed = scratch.TakeMatrix(compute, rows, spec.hidden);
  g.activated = scratch.TakeMatrix(compute, rows, spec.mlp().intermediate);
  g.attention = scratch.TakeMatrix(compute, rows, spec.attention().q_size());
  return g;
}

void BlockForward(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
                  const BlockActivations& activations, Matrix output) {
  BlockForwardQkv(ops, weights, sequences, activations);
  Attend(ops, weights, sequences, activations);
  BlockForwardOutput(ops, weights, activations, output);
}

void BlockForwardQkv(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
                     const BlockActivations& a) {
  const plan::ModelSpec& spec = weights.spec;
  const BlockLayout& layout = weights.layout;
  const plan::Attention& attention = weights.kind.attention;
  const int64_t q_size = attention.q_size();
  const int64_t kv_size = attention.kv_size();
  ops.RmsNormForward(a.input, Vector(weights, layout.input_norm, spec.hidden), spec.norm_epsilon,
                     {}, a.input_normed, a.input_inverse_rms);
  // Where q and k are normed, they are first made beside their places.
  const bool normed = layout.q_norm >= 0;
  const Matrix first = normed ? a.qk : a.qkv;
  const Matrix v = a.qkv.Columns(q_size + kv_size, kv_size);
  Project(ops, a.input_normed, Weight(weights, layout.qkv, first.columns, spec.hidden), first);
  if (normed) {
    Project(ops, a.input_normed,
            Weight(weights, layout.qkv + first.columns * spec.hidden, kv_size, spec.hidden), v);
  }
  AddBias(ops, weights, layout.q_bias, first.Columns(0, q_size));
  AddBias(ops, weights, layout.k_bias, first.Columns(q_size, kv_size));
  AddBias(ops, weights, layout.v_bias, v);
  if (normed) {
    ops.RmsNormForward(first.Columns(0, q_size), Vector(weights, layout.q_norm, attention.head_dim),
                       spec.norm_epsilon, {}, a.qkv.Columns(0, q_size), a.q_inverse_rms);
    ops.RmsNormForward(first.Columns(q_size, kv_size),
                       Vector(weights, layout.k_norm, attention.head_dim), spec.norm_epsilon, {},
                       a.qkv.Columns(q_size, kv_size), a.k_inverse_rms);
  }
  ops.RotaryForward(a.qkv, attention.heads + attention.kv_heads, attention.head_dim,
                    sequences.positions, sequences.cosines, sequences.sines);
}

void BlockForwardOutput(Ops& ops, const BlockWeights& weights, const BlockActivations& a,
                        Matrix output) {
  const plan::ModelSpec& spec = weights.spec;
  const BlockLayout& layout = weights.layout;
  ForwardToGateUp(ops, weights, a);
  ops.SwiGluForward(a.gate_up, a.activated);
  Project(ops, a.activated, Weight(weights, layout.down, spec.hidden, a.activated.columns), output,
          a.middle);
  AddBias(ops, weights, layout.down_bias, output);
}

void BlockBackwardInput(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
                        const BlockActivations& a, plan::Recompute recompute,
                        const BlockGradients& g, Matrix d_input) {
  const plan::ModelSpec& spec = weights.spec;
  const BlockLayout& layout = weights.layout;
  Remake(ops, weights, sequences, a, recompute);
  ProjectBackwardInput(ops, g.output,
                       Weight(weights, layout.down, spec.hidden, a.activated.columns), g.activated);
  const bool has_activated = recompute == plan::Recompute::kNone;
  ops.SwiGluBackward(g.activated, a.gate_up, g.gate_up, has_activated ? Matrix{} : a.activated);
  ProjectBackwardInput(ops, g.gate_up,
                       Weight(weights, layout.gate_up, a.gate_up.columns, spec.hidden),
                       g.middle_normed);
  ops.RmsNormBackward(g.middle_normed, a.middle, Vector(weights, layout.mlp_norm, spec.hidden),
                      a.middle_inverse_rms, g.output, g.middle, g.mlp_norm);
  ProjectBackwardInput(
      ops, g.middle, Weight(weights, layout.output, spec.hidden, a.attention.columns), g.attention);
  ops.AttentionBackward(
      g.attention, a.qkv, a.attention, a.log_sum_exp, ShapeOf(weights.kind.attention),
      sequences.cu_seqlens,
      {.positions = sequences.positions, .cosines = sequences.cosines, .sines = sequences.sines},
      g.qkv);
  QkNormBackward(ops, weights, a, g);
  ProjectBackwardInput(ops, g.qkv, Weight(weights, layout.qkv, g.qkv.columns, spec.hidden),
                       g.input_normed);
  ops.RmsNormBackward(g.input_normed, a.input, Vector(weights, layout.input_norm, spec.hidden),
                      a.input_inverse_rms, g.middle, d_input, g.input_norm);
}

void BlockBackwardWeights(Ops& ops, const plan::ModelSpec& spec, const BlockLayout& layout,
                          const BlockActivations& a, const BlockGradients& g,
                          const UnitGradient& unit_gradient) {
  float* const sums = unit_gradient.sums.data();
  const int64_t q = spec.attention().q_size();
  const int64_t kv = spec.attention().kv_size();
  const int64_t intermediate = spec.mlp().intermediate;
  if (unit_gradient.empty) {
    ZeroVectors(ops, spec, layout, unit_gradient);
  }
  ProjectBackwardWeight(ops, g.output, a.activated, unit_gradient, layout.down);
  BiasBackward(ops, g.output, layout.down_bias, sums);
  ProjectBackwardWeight(ops, g.gate_up, a.middle_normed, unit_gradient, layout.gate_up);
  BiasBackward(ops, g.gate_up.Columns(0, intermediate), layout.gate_bias, sums);
  BiasBackward(ops, g.gate_up.Columns(intermediate, intermediate), layout.up_bias, sums);
  ops.AddColumnSums(g.mlp_norm, sums + layout.mlp_norm);
  ProjectBackwardWeight(ops, g.middle, a.attention, unit_gradient, layout.output);
  BiasBackward(ops, g.middle, layout.output_bias, sums);
  ProjectBackwardWeight(ops, g.qkv, a.input_normed, unit_gradient, layout.qkv);
  BiasBackward(ops, g.qkv.Columns(0, q), layout.q_bias, sums);
  BiasBackward(ops, g.qkv.Columns(q, kv), layout.k_bias, sums);
  BiasBackward(ops, g.qkv.Columns(q + kv, kv), layout.v_bias, sums);
  if (layout.q_norm >= 0) {
    ops.AddColumnSums(g.q_norm, sums + layout.q_norm);
    ops.AddColumnSums(g.k_norm, sums + layout.k_norm);
  }
  ops.AddColumnSums(g.input_norm, sums + layout.input_norm);
}

}  // namespace shoal::worker

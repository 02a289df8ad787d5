#include "worker/model/block.h"

#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/memory/norm_partials.h"

namespace shoal::worker {
namespace {

ConstVector Vector(const BlockWeights& weights, int64_t offset, int64_t count) {
  return {static_cast<const std::byte*>(weights.data) + offset * SizeOf(weights.dtype),
          weights.dtype, count};
}

ConstMatrix Weight(const BlockWeights& weights, int64_t offset, int64_t rows, int64_t columns) {
  return ConstMatrix::Dense(Vector(weights, offset, rows * columns).data, weights.dtype, rows,
                            columns);
}

AttentionShape Heads(const plan::ModelSpec& spec) {
  return {.heads = spec.heads, .kv_heads = spec.kv_heads, .head_dim = spec.head_dim};
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
      {layout.qkv, Heads(spec).qkv_size() * spec.hidden},
      {layout.output, spec.hidden * spec.q_size()},
      {layout.gate_up, 2 * spec.intermediate * spec.hidden},
      {layout.down, spec.hidden * spec.intermediate}};
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

void Attend(Ops& ops, const plan::ModelSpec& spec, const SequenceContext& sequences,
            const BlockActivations& a) {
  ops.AttentionForward(a.qkv, Heads(spec), sequences.cu_seqlens, a.attention, a.log_sum_exp);
}

// Runs from attention on, up to the input of the activation function.
void ForwardToGateUp(Ops& ops, const BlockWeights& weights, const BlockActivations& a) {
  const plan::ModelSpec& spec = weights.spec;
  const BlockLayout& layout = weights.layout;
  Project(ops, a.attention, Weight(weights, layout.output, spec.hidden, spec.q_size()), a.middle,
          a.input);
  AddBias(ops, weights, layout.output_bias, a.middle);
  ops.RmsNormForward(a.middle, Vector(weights, layout.attention_norm, spec.hidden),
                     spec.norm_epsilon, a.middle_normed, a.middle_inverse_rms);
  Project(ops, a.middle_normed, Weight(weights, layout.gate_up, 2 * spec.intermediate, spec.hidden),
          a.gate_up);
  AddBias(ops, weights, layout.gate_bias, a.gate_up.Columns(0, spec.intermediate));
  AddBias(ops, weights, layout.up_bias, a.gate_up.Columns(spec.intermediate, spec.intermediate));
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
                         spec.norm_epsilon, a.input_normed, a.input_inverse_rms);
      ops.RmsNormForward(a.middle, Vector(weights, weights.layout.attention_norm, spec.hidden),
                         spec.norm_epsilon, a.middle_normed, a.middle_inverse_rms);
      return;
    case plan::Recompute::kFull:
      BlockForwardQkv(ops, weights, sequences, a);
      Attend(ops, spec, sequences, a);
      ForwardToGateUp(ops, weights, a);
      return;
  }
}

}  // namespace

BlockLayout MakeBlockLayout(const plan::ModelSpec& spec) {
  SHOAL_CHECK(ValidateLayout(spec).ok());
  const plan::UnitSpec unit = plan::BuildUnits(spec)[1];
  const auto offset = [&](const std::string& name) {
    return unit.tensor("model.layers.0." + name).offset;
  };
  BlockLayout layout;
  layout.input_norm = offset("input_layernorm.weight");
  layout.qkv = offset("self_attn.q_proj.weight");
  layout.output = offset("self_attn.o_proj.weight");
  layout.attention_norm = offset("post_attention_layernorm.weight");
  layout.gate_up = offset("mlp.gate_proj.weight");
  layout.down = offset("mlp.down_proj.weight");
  SHOAL_CHECK(offset("self_attn.v_proj.weight") ==
              layout.qkv + (spec.q_size() + spec.kv_size()) * spec.hidden);
  SHOAL_CHECK(offset("mlp.up_proj.weight") == layout.gate_up + spec.intermediate * spec.hidden);
  if (spec.attention_bias) {
    layout.q_bias = offset("self_attn.q_proj.bias");
    layout.k_bias = offset("self_attn.k_proj.bias");
    layout.v_bias = offset("self_attn.v_proj.bias");
  }
  if (spec.output_bias) {
    layout.output_bias = offset("self_attn.o_proj.bias");
  }
  if (spec.mlp_bias) {
    layout.gate_bias = offset("mlp.gate_proj.bias");
    layout.up_bias = offset("mlp.up_proj.bias");
    layout.down_bias = offset("mlp.down_proj.bias");
  }
  return layout;
}

absl::Status ValidateLayout(const plan::ModelSpec& spec) {
  for (const int64_t rows : {spec.q_size(), spec.kv_size(), spec.intermediate}) {
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
  BlockActivations a;
  a.input = input.TakeMatrix(compute, rows, spec.hidden);
  a.input_inverse_rms = rest.TakeArray<float>(rows);
  a.input_normed = outputs.TakeMatrix(compute, rows, spec.hidden);
  a.qkv = rest.TakeMatrix(compute, rows, Heads(spec).qkv_size());
  a.attention = attention.TakeMatrix(compute, rows, spec.q_size());
  a.log_sum_exp = rest.TakeArray<float>(rows * spec.heads);
  a.middle = rest.TakeMatrix(compute, rows, spec.hidden);
  a.middle_inverse_rms = rest.TakeArray<float>(rows);
  a.middle_normed = outputs.TakeMatrix(compute, rows, spec.hidden);
  a.gate_up = rest.TakeMatrix(compute, rows, 2 * spec.intermediate);
  a.activated = outputs.TakeMatrix(compute, rows, spec.intermediate);
  return a;
}

BlockGradients BlockGradients::Carve(Carver& results, Carver& scratch, const plan::ModelSpec& spec,
                                     DType compute, int64_t rows) {
  BlockGradients g;
  const int64_t partials = plan::NormPartials(rows);
  g.gate_up = results.TakeMatrix(compute, rows, 2 * spec.intermediate);
  g.attention_norm = results.TakeMatrix(DType::kF32, partials, spec.hidden);
  g.middle = results.TakeMatrix(compute, rows, spec.hidden);
  g.qkv = results.TakeMatrix(compute, rows, Heads(spec).qkv_size());
  g.input_norm = results.TakeMatrix(DType::kF32, partials, spec.hidden);
  g.middle_normed = scratch.TakeMatrix(compute, rows, spec.hidden);
  g.input_normed = scratch.TakeMatrix(compute, rows, spec.hidden);
  g.activated = scratch.TakeMatrix(compute, rows, spec.intermediate);
  g.attention = scratch.TakeMatrix(compute, rows, spec.q_size());
  return g;
}

void BlockForward(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
                  const BlockActivations& activations, Matrix output) {
  BlockForwardQkv(ops, weights, sequences, activations);
  Attend(ops, weights.spec, sequences, activations);
  BlockForwardOutput(ops, weights, activations, output);
}

void BlockForwardQkv(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
                     const BlockActivations& a) {
  const plan::ModelSpec& spec = weights.spec;
  const BlockLayout& layout = weights.layout;
  ops.RmsNormForward(a.input, Vector(weights, layout.input_norm, spec.hidden), spec.norm_epsilon,
                     a.input_normed, a.input_inverse_rms);
  Project(ops, a.input_normed, Weight(weights, layout.qkv, a.qkv.columns, spec.hidden), a.qkv);
  AddBias(ops, weights, layout.q_bias, a.qkv.Columns(0, spec.q_size()));
  AddBias(ops, weights, layout.k_bias, a.qkv.Columns(spec.q_size(), spec.kv_size()));
  AddBias(ops, weights, layout.v_bias,
          a.qkv.Columns(spec.q_size() + spec.kv_size(), spec.kv_size()));
  ops.RotaryForward(a.qkv, spec.heads + spec.kv_heads, spec.head_dim, sequences.positions,
                    sequences.cosines, sequences.sines);
}

void BlockForwardOutput(Ops& ops, const BlockWeights& weights, const BlockActivations& a,
                        Matrix output) {
  const plan::ModelSpec& spec = weights.spec;
  const BlockLayout& layout = weights.layout;
  ForwardToGateUp(ops, weights, a);
  ops.SwiGluForward(a.gate_up, a.activated);
  Project(ops, a.activated, Weight(weights, layout.down, spec.hidden, spec.intermediate), output,
          a.middle);
  AddBias(ops, weights, layout.down_bias, output);
}

void BlockBackwardInput(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
                        const BlockActivations& a, plan::Recompute recompute,
                        const BlockGradients& g, Matrix d_input) {
  const plan::ModelSpec& spec = weights.spec;
  const BlockLayout& layout = weights.layout;
  Remake(ops, weights, sequences, a, recompute);
  ProjectBackwardInput(ops, g.output, Weight(weights, layout.down, spec.hidden, spec.intermediate),
                       g.activated);
  const bool has_activated = recompute == plan::Recompute::kNone;
  ops.SwiGluBackward(g.activated, a.gate_up, g.gate_up, has_activated ? Matrix{} : a.activated);
  ProjectBackwardInput(ops, g.gate_up,
                       Weight(weights, layout.gate_up, 2 * spec.intermediate, spec.hidden),
                       g.middle_normed);
  ops.RmsNormBackward(g.middle_normed, a.middle,
                      Vector(weights, layout.attention_norm, spec.hidden), a.middle_inverse_rms,
                      g.output, g.middle, g.attention_norm);
  ProjectBackwardInput(ops, g.middle, Weight(weights, layout.output, spec.hidden, spec.q_size()),
                       g.attention);
  ops.AttentionBackward(
      g.attention, a.qkv, a.attention, a.log_sum_exp, Heads(spec), sequences.cu_seqlens,
      {.positions = sequences.positions, .cosines = sequences.cosines, .sines = sequences.sines},
      g.qkv);
  ProjectBackwardInput(ops, g.qkv, Weight(weights, layout.qkv, g.qkv.columns, spec.hidden),
                       g.input_normed);
  ops.RmsNormBackward(g.input_normed, a.input, Vector(weights, layout.input_norm, spec.hidden),
                      a.input_inverse_rms, g.middle, d_input, g.input_norm);
}

void BlockBackwardWeights(Ops& ops, const plan::ModelSpec& spec, const BlockLayout& layout,
                          const BlockActivations& a, const BlockGradients& g,
                          const UnitGradient& unit_gradient) {
  float* const sums = unit_gradient.sums.data();
  if (unit_gradient.empty) {
    ZeroVectors(ops, spec, layout, unit_gradient);
  }
  ProjectBackwardWeight(ops, g.output, a.activated, unit_gradient, layout.down);
  BiasBackward(ops, g.output, layout.down_bias, sums);
  ProjectBackwardWeight(ops, g.gate_up, a.middle_normed, unit_gradient, layout.gate_up);
  BiasBackward(ops, g.gate_up.Columns(0, spec.intermediate), layout.gate_bias, sums);
  BiasBackward(ops, g.gate_up.Columns(spec.intermediate, spec.intermediate), layout.up_bias, sums);
  ops.AddColumnSums(g.attention_norm, sums + layout.attention_norm);
  ProjectBackwardWeight(ops, g.middle, a.attention, unit_gradient, layout.output);
  BiasBackward(ops, g.middle, layout.output_bias, sums);
  ProjectBackwardWeight(ops, g.qkv, a.input_normed, unit_gradient, layout.qkv);
  BiasBackward(ops, g.qkv.Columns(0, spec.q_size()), layout.q_bias, sums);
  BiasBackward(ops, g.qkv.Columns(spec.q_size(), spec.kv_size()), layout.k_bias, sums);
  BiasBackward(ops, g.qkv.Columns(spec.q_size() + spec.kv_size(), spec.kv_size()), layout.v_bias,
               sums);
  ops.AddColumnSums(g.input_norm, sums + layout.input_norm);
}

}  // namespace shoal::worker

#include "worker/model/block.h"

#include <utility>

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

NormWeight Norm(const BlockWeights& weights, int64_t offset, int64_t count) {
  return {Vector(weights, offset, count), static_cast<float>(weights.spec.norm_offset)};
}

// y[T, out] = x[T, in] weight[out, in]^T, plus the addend [T, out] if given
void Project(Ops& ops, ConstMatrix x, ConstMatrix weight, Matrix y, ConstMatrix addend) {
  ops.Matmul({.a = x, .b = weight, .c = y, .transpose_b = true, .addend = addend});
}

// d_x[T, in] = d_y[T, out] weight[out, in], plus the addend [T, in] if given
void ProjectBackwardInput(Ops& ops, ConstMatrix d_y, ConstMatrix weight, Matrix d_x,
                          ConstMatrix addend) {
  ops.Matmul({.a = d_y, .b = weight, .c = d_x, .addend = addend});
}

// Returns columns of an addend that may be null.
ConstMatrix ColumnsOf(ConstMatrix addend, int64_t first, int64_t count) {
  return addend.data == nullptr ? addend : addend.Columns(first, count);
}

void AddBias(Ops& ops, const BlockWeights& weights, int64_t offset, Matrix y) {
  if (offset >= 0) {
    ops.AddBias(Vector(weights, offset, y.columns), y);
  }
}

// Puts x, normed, into y, if it has a norm.
void NormInput(Ops& ops, const BlockWeights& weights, int64_t norm, ConstMatrix x, Matrix y,
               float* inverse_rms) {
  if (norm >= 0) {
    ops.RmsNormForward(x, Norm(weights, norm, x.columns), weights.spec.norm_epsilon, {}, y,
                       inverse_rms);
  }
}

// A product that is added to the residual stream: its matrix and its norm, if any.
struct ToStream {
  plan::Product product;
  int64_t matrix;
  int64_t bias;
  int64_t norm;
  Matrix before;  // [T, H]: before the norm
  float* inverse_rms;
};

// y[T, H] = residual + x[T, in] weight[H, in]^T, normed or not
void AddToStream(Ops& ops, const BlockWeights& weights, const ToStream& to, ConstMatrix x,
                 ConstMatrix residual, const AdapterMemory& memory, Matrix y) {
  const ConstMatrix weight = Weight(weights, to.matrix, y.columns, x.columns);
  if (to.norm >= 0) {
    Project(ops, x, weight, to.before, AdaptForward(ops, weights.adapters, to.product, x, memory));
    AddBias(ops, weights, to.bias, to.before);
    ops.RmsNormForward(to.before, Norm(weights, to.norm, y.columns), weights.spec.norm_epsilon,
                       residual, y, to.inverse_rms);
    return;
  }
  const Matrix sum = AdaptStreamForward(ops, weights.adapters, to.product, x, residual, memory);
  if (sum.data == nullptr) {
    Project(ops, x, weight, y, residual);
  } else {
    ops.Matmul({.a = x, .b = weight, .c = sum, .transpose_b = true, .accumulate = true});
    ops.Convert(sum, y);
  }
  AddBias(ops, weights, to.bias, y);
}

// Returns the gradient of the product, from that of the stream it is added to.
ConstMatrix ToStreamBackward(Ops& ops, const BlockWeights& weights, const ToStream& to,
                             ConstMatrix d_stream, Matrix d_product, Matrix d_norm) {
  if (to.norm < 0) {
    return d_stream;
  }
  ops.RmsNormBackward(d_stream, to.before, Norm(weights, to.norm, d_stream.columns), to.inverse_rms,
                      {}, d_product, d_norm);
  return d_product;
}

// A product of the residual stream x, normed or not.
struct FromStream {
  plan::Product product;
  int64_t matrix;
  int64_t norm;
  ConstMatrix x;  // [T, H]
  const float* inverse_rms;
};

// d_x[T, H] = residual + the gradient of x, from d_y[T, out] of the product.
void FromStreamBackward(Ops& ops, const BlockWeights& weights, const FromStream& from,
                        ConstMatrix d_y, ConstMatrix residual, const AdapterMemory& memory,
                        Matrix d_normed, Matrix d_x, Matrix d_norm) {
  const ConstMatrix weight = Weight(weights, from.matrix, d_y.columns, d_x.columns);
  if (from.norm < 0) {
    const Matrix sum =
        AdaptStreamBackward(ops, weights.adapters, from.product, d_y, residual, memory);
    if (sum.data == nullptr) {
      ProjectBackwardInput(ops, d_y, weight, d_x, residual);
    } else {
      ops.Matmul({.a = d_y, .b = weight, .c = sum, .accumulate = true});
      ops.Convert(sum, d_x);
    }
    return;
  }
  ProjectBackwardInput(ops, d_y, weight, d_normed,
                       AdaptBackward(ops, weights.adapters, from.product, d_y, memory));
  ops.RmsNormBackward(d_normed, from.x, Norm(weights, from.norm, d_x.columns), from.inverse_rms,
                      residual, d_x, d_norm);
}

ToStream OutputOf(const BlockLayout& layout, const BlockActivations& a) {
  return {plan::Product::kOutput,       layout.output,      layout.output_bias,
          layout.attention_output_norm, a.attention_output, a.attention_inverse_rms};
}
ToStream DownOf(const BlockLayout& layout, const BlockActivations& a) {
  return {plan::Product::kDown,   layout.down,  layout.down_bias,
          layout.mlp_output_norm, a.mlp_output, a.mlp_inverse_rms};
}

// The inputs of attention's and of the MLP's first products.
ConstMatrix AttentionInput(const BlockLayout& layout, const BlockActivations& a) {
  return layout.input_norm < 0 ? a.input : a.input_normed;
}
ConstMatrix MlpInput(const BlockLayout& layout, const BlockActivations& a) {
  return layout.mlp_norm < 0 ? a.middle : a.middle_normed;
}

// The gradients of the products that are added to the stream.
ConstMatrix DownGradient(const BlockLayout& layout, const BlockGradients& g) {
  return layout.mlp_output_norm < 0 ? g.output : ConstMatrix(g.mlp_output);
}
ConstMatrix OutputGradient(const BlockLayout& layout, const BlockGradients& g) {
  return layout.attention_output_norm < 0 ? g.middle : g.attention_output;
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
  AddToStream(ops, weights, OutputOf(layout, a), a.attention, a.input, a.adapters, a.middle);
  NormInput(ops, weights, layout.mlp_norm, a.middle, a.middle_normed, a.middle_inverse_rms);
  const ConstMatrix input = MlpInput(layout, a);
  Project(ops, input, Weight(weights, layout.gate_up, 2 * intermediate, spec.hidden), a.gate_up,
          AdaptForward(ops, weights.adapters, plan::Product::kGateUp, input, a.adapters));
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
    ops.RmsNormBackward(d, a.qk.Columns(column, columns), Norm(weights, norm, d_weights.columns),
                        inverse_rms, {}, d, d_weights);
  };
  backward(0, attention.q_size(), weights.layout.q_norm, a.q_inverse_rms, g.q_norm);
  backward(attention.q_size(), attention.kv_size(), weights.layout.k_norm, a.k_inverse_rms,
           g.k_norm);
}

// Recomputes what forward made and did not keep, except `activated`, which the activation
// function's backward recomputes. Overwrites `output`.
void Remake(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
            const BlockActivations& a, plan::Recompute recompute, Matrix output) {
  const BlockLayout& layout = weights.layout;
  switch (recompute) {
    case plan::Recompute::kNone:
      return;
    case plan::Recompute::kLight:
      NormInput(ops, weights, layout.input_norm, a.input, a.input_normed, a.input_inverse_rms);
      NormInput(ops, weights, layout.mlp_norm, a.middle, a.middle_normed, a.middle_inverse_rms);
      return;
    case plan::Recompute::kFull:
      BlockForwardQkv(ops, weights, sequences, a);
      Attend(ops, weights, sequences, a);
      if (layout.mlp_output_norm < 0) {
        ForwardToGateUp(ops, weights, a);
      } else {
        BlockForwardOutput(ops, weights, a, output);
      }
      return;
  }
}

}  // namespace

AttentionShape ShapeOf(const plan::Attention& attention) {
  return {.heads = attention.heads,
          .kv_heads = attention.kv_heads,
          .head_dim = attention.head_dim,
          .window = attention.window,
          .query_scalar = attention.query_scalar,
          .softcap = attention.softcap};
}

BlockActivations BlockActivations::Carve(const ActivationCarvers& carvers,
                                         const plan::ModelSpec& spec, DType compute, int64_t rows) {
  const auto& [input, outputs, attention, rest, scratch] = carvers;
  const plan::Attention& attention_of = spec.attention();
  const bool norms_inputs = spec.kind().norms_inputs();
  const bool norms_outputs = spec.kind().norms_outputs();
  BlockActivations a{};
  a.input = input.TakeMatrix(compute, rows, spec.hidden);
  if (norms_inputs) {
    a.input_inverse_rms = rest.TakeArray<float>(rows);
    a.input_normed = outputs.TakeMatrix(compute, rows, spec.hidden);
  }
  if (attention_of.qk_norm != plan::QkNorm::kNone) {
    a.qk = rest.TakeMatrix(compute, rows, attention_of.q_size() + attention_of.kv_size());
    a.q_inverse_rms = rest.TakeArray<float>(rows * attention_of.q_norms());
    a.k_inverse_rms = rest.TakeArray<float>(rows * attention_of.k_norms());
  }
  a.qkv = rest.TakeMatrix(compute, rows, attention_of.qkv_size());
  a.attention = attention.TakeMatrix(compute, rows, attention_of.q_size());
  a.log_sum_exp = rest.TakeArray<float>(rows * attention_of.heads);
  if (norms_outputs) {
    a.attention_output = rest.TakeMatrix(compute, rows, spec.hidden);
    a.attention_inverse_rms = rest.TakeArray<float>(rows);
    a.mlp_output = rest.TakeMatrix(compute, rows, spec.hidden);
    a.mlp_inverse_rms = rest.TakeArray<float>(rows);
  }
  a.middle = (norms_inputs ? rest : attention).TakeMatrix(compute, rows, spec.hidden);
  if (norms_inputs) {
    a.middle_inverse_rms = rest.TakeArray<float>(rows);
    a.middle_normed = outputs.TakeMatrix(compute, rows, spec.hidden);
  }
  a.gate_up = rest.TakeMatrix(compute, rows, 2 * spec.mlp().intermediate);
  a.activated = outputs.TakeMatrix(compute, rows, spec.mlp().intermediate);
  a.adapters.reduced = attention.TakeMatrix(compute, rows, plan::AdapterRanks(spec));
  a.adapters.scratch = scratch.TakeMatrix(compute, rows, plan::AdaptedWidth(spec));
  return a;
}

BlockGradients BlockGradients::Carve(Carver& results, Carver& scratch, const plan::ModelSpec& spec,
                                     DType compute, int64_t rows) {
  BlockGradients g;
  const int64_t partials = plan::NormPartials(rows);
  const plan::Attention& attention = spec.attention();
  const auto take_sums = [&](int64_t columns) {
    return results.TakeMatrix(DType::kF32, partials, columns);
  };
  g.gate_up = results.TakeMatrix(compute, rows, 2 * spec.mlp().intermediate);
  g.middle = results.TakeMatrix(compute, rows, spec.hidden);
  g.qkv = results.TakeMatrix(compute, rows, attention.qkv_size());
  g.reduced = results.TakeMatrix(compute, rows, plan::AdapterRanks(spec));
  if (spec.kind().norms_outputs()) {
    g.mlp_output = results.TakeMatrix(compute, rows, spec.hidden);
    g.mlp_output_norm = take_sums(spec.hidden);
    g.attention_output = results.TakeMatrix(compute, rows, spec.hidden);
    g.attention_output_norm = take_sums(spec.hidden);
  }
  if (spec.kind().norms_inputs()) {
    g.mlp_norm = take_sums(spec.hidden);
    g.input_norm = take_sums(spec.hidden);
    g.middle_normed = scratch.TakeMatrix(compute, rows, spec.hidden);
    g.input_normed = scratch.TakeMatrix(compute, rows, spec.hidden);
  }
  if (attention.qk_norm != plan::QkNorm::kNone) {
    g.q_norm = take_sums(attention.q_size() / attention.q_norms());
    g.k_norm = take_sums(attention.kv_size() / attention.k_norms());
  }
  g.activated = scratch.TakeMatrix(compute, rows, spec.mlp().intermediate);
  g.attention = scratch.TakeMatrix(compute, rows, attention.q_size());
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
  NormInput(ops, weights, layout.input_norm, a.input, a.input_normed, a.input_inverse_rms);
  const ConstMatrix input = AttentionInput(layout, a);
  // Where q and k are normed, they are first made beside their places.
  const bool normed = layout.q_norm >= 0;
  const Matrix first = normed ? a.qk : a.qkv;
  const Matrix v = a.qkv.Columns(q_size + kv_size, kv_size);
  const ConstMatrix added =
      AdaptForward(ops, weights.adapters, plan::Product::kQkv, input, a.adapters);
  Project(ops, input, Weight(weights, layout.qkv, first.columns, spec.hidden), first,
          ColumnsOf(added, 0, first.columns));
  if (normed) {
    Project(ops, input,
            Weight(weights, layout.qkv + first.columns * spec.hidden, kv_size, spec.hidden), v,
            ColumnsOf(added, first.columns, kv_size));
  }
  AddBias(ops, weights, layout.q_bias, first.Columns(0, q_size));
  AddBias(ops, weights, layout.k_bias, first.Columns(q_size, kv_size));
  AddBias(ops, weights, layout.v_bias, v);
  if (normed) {
    ops.RmsNormForward(first.Columns(0, q_size),
                       Norm(weights, layout.q_norm, q_size / attention.q_norms()),
                       spec.norm_epsilon, {}, a.qkv.Columns(0, q_size), a.q_inverse_rms);
    ops.RmsNormForward(first.Columns(q_size, kv_size),
                       Norm(weights, layout.k_norm, kv_size / attention.k_norms()),
                       spec.norm_epsilon, {}, a.qkv.Columns(q_size, kv_size), a.k_inverse_rms);
  }
  ops.RotaryForward(a.qkv, attention.heads + attention.kv_heads, attention.head_dim,
                    sequences.rotation);
}

void BlockForwardOutput(Ops& ops, const BlockWeights& weights, const BlockActivations& a,
                        Matrix output) {
  ForwardToGateUp(ops, weights, a);
  if (weights.kind.mlp.gate == plan::Gate::kSilu) {
    ops.SwiGluForward(a.gate_up, a.activated);
  } else {
    ops.GeGluForward(a.gate_up, a.activated);
  }
  AddToStream(ops, weights, DownOf(weights.layout, a), a.activated, a.middle, a.adapters, output);
}

void BlockBackwardInput(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
                        const BlockActivations& a, plan::Recompute recompute,
                        const BlockGradients& g, Matrix d_input) {
  const BlockLayout& layout = weights.layout;
  const int64_t hidden = weights.spec.hidden;
  const AdapterMemory memory{g.reduced, a.adapters.scratch};
  Remake(ops, weights, sequences, a, recompute, d_input);
  const ConstMatrix d_down =
      ToStreamBackward(ops, weights, DownOf(layout, a), g.output, g.mlp_output, g.mlp_output_norm);
  ProjectBackwardInput(ops, d_down, Weight(weights, layout.down, hidden, a.activated.columns),
                       g.activated,
                       AdaptBackward(ops, weights.adapters, plan::Product::kDown, d_down, memory));
  const Matrix remade = recompute == plan::Recompute::kNone ? Matrix{} : a.activated;
  if (weights.kind.mlp.gate == plan::Gate::kSilu) {
    ops.SwiGluBackward(g.activated, a.gate_up, g.gate_up, remade);
  } else {
    ops.GeGluBackward(g.activated, a.gate_up, g.gate_up, remade);
  }
  if (recompute == plan::Recompute::kFull) {  // what was made again ends before it
    ReduceInput(ops, weights.adapters, plan::Product::kDown, a.activated, a.adapters);
  }
  FromStreamBackward(
      ops, weights,
      {plan::Product::kGateUp, layout.gate_up, layout.mlp_norm, a.middle, a.middle_inverse_rms},
      g.gate_up, g.output, memory, g.middle_normed, g.middle, g.mlp_norm);
  const ConstMatrix d_output = ToStreamBackward(ops, weights, OutputOf(layout, a), g.middle,
                                                g.attention_output, g.attention_output_norm);
  ProjectBackwardInput(
      ops, d_output, Weight(weights, layout.output, hidden, a.attention.columns), g.attention,
      AdaptBackward(ops, weights.adapters, plan::Product::kOutput, d_output, memory));
  ops.AttentionBackward(g.attention, a.qkv, a.attention, a.log_sum_exp,
                        ShapeOf(weights.kind.attention), sequences.cu_seqlens, sequences.rotation,
                        g.qkv);
  QkNormBackward(ops, weights, a, g);
  FromStreamBackward(
      ops, weights,
      {plan::Product::kQkv, layout.qkv, layout.input_norm, a.input, a.input_inverse_rms}, g.qkv,
      g.middle, memory, g.input_normed, d_input, g.input_norm);
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
  const auto sum_norm = [&](ConstMatrix partials, int64_t offset) {
    if (offset >= 0) {
      ops.AddColumnSums(partials, sums + offset);
    }
  };
  const ConstMatrix d_down = DownGradient(layout, g);
  sum_norm(g.mlp_output_norm, layout.mlp_output_norm);
  ProjectBackwardWeight(ops, d_down, a.activated, unit_gradient, layout.down);
  BiasBackward(ops, d_down, layout.down_bias, sums);
  ProjectBackwardWeight(ops, g.gate_up, MlpInput(layout, a), unit_gradient, layout.gate_up);
  BiasBackward(ops, g.gate_up.Columns(0, intermediate), layout.gate_bias, sums);
  BiasBackward(ops, g.gate_up.Columns(intermediate, intermediate), layout.up_bias, sums);
  sum_norm(g.mlp_norm, layout.mlp_norm);
  const ConstMatrix d_output = OutputGradient(layout, g);
  sum_norm(g.attention_output_norm, layout.attention_output_norm);
  ProjectBackwardWeight(ops, d_output, a.attention, unit_gradient, layout.output);
  BiasBackward(ops, d_output, layout.output_bias, sums);
  ProjectBackwardWeight(ops, g.qkv, AttentionInput(layout, a), unit_gradient, layout.qkv);
  BiasBackward(ops, g.qkv.Columns(0, q), layout.q_bias, sums);
  BiasBackward(ops, g.qkv.Columns(q, kv), layout.k_bias, sums);
  BiasBackward(ops, g.qkv.Columns(q + kv, kv), layout.v_bias, sums);
  sum_norm(g.q_norm, layout.q_norm);
  sum_norm(g.k_norm, layout.k_norm);
  sum_norm(g.input_norm, layout.input_norm);
}

void AdaptersBackwardWeights(Ops& ops, const BlockLayout& layout,
                             const plan::AdapterLayout& adapters, const DropoutMask& dropout,
                             const BlockActivations& a, const BlockGradients& g,
                             const UnitGradient& unit_gradient) {
  const auto add = [&](plan::Product of, ConstMatrix d_y, ConstMatrix x) {
    const plan::AdaptedProduct& product = adapters[static_cast<size_t>(of)];
    if (product.ranks > 0) {
      AddAdapterGradient(ops, product, d_y, SeenInput(ops, dropout, of, x, a.adapters),
                         a.adapters.reduced, g.reduced, unit_gradient);
    }
  };
  add(plan::Product::kDown, DownGradient(layout, g), a.activated);
  add(plan::Product::kGateUp, g.gate_up, MlpInput(layout, a));
  add(plan::Product::kOutput, OutputGradient(layout, g), a.attention);
  add(plan::Product::kQkv, g.qkv, AttentionInput(layout, a));
}

}  // namespace shoal::worker

// The operators of the model, each forward with its backward: what a backend has to implement. One
// indirect call per operator; the CPU implementation (ops/cpu, one operator per file) is the oracle
// for any other.
//
// Conventions, here and in every file of ops/:
// - T tokens (rows), H hidden size, I intermediate size, V vocabulary, D head size, Q = heads x D,
//   KV = kv_heads x D. dX is the gradient of X.
// - "ADDED" means that the destination is accumulated into; everything else is overwritten.
// - Activations, their gradients and weights are in the compute type (fp32 or bf16, one for all);
//   weight gradients are fp32 and always ADDED; sums, softmax and norms are computed in fp32.
// - Pointers are device memory.
// - Padding: T may include rows that belong to no sequence (a microbatch is padded so that few
//   shapes occur). They hold finite values, and their gradients are zero, so they add nothing to
//   any weight gradient.
//
// Work runs in order on the one stream for which the table was made. Operators return nothing:
// shapes are checked (a wrong one is a programmer's error), and what the machine refuses (memory, a
// kernel) is kept and returned by Check and Finish. On a GPU an operator returns when its work is
// on the stream: device memory passed to it is in use until that work is done, spans of the host
// only during the call.
//
// Deterministic: the same input gives the same bits in every run on the same kind of machine, with
// any number of threads; an input-gradient call plus a weight-gradient call give the bits of the
// two together, in either order. Threads: one caller at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "worker/backend/backend.h"
#include "worker/ops/dropout.h"
#include "worker/ops/labelled_rows.h"
#include "worker/ops/tensor.h"

namespace shoal::worker {

// C[m, n] = op(A)[m, k] op(B)[k, n], plus `addend` [m, n] if it has data, or ADDED to C (only fp32
// C). A and B share a type; C has that type or fp32, and the addend C's. The addend must be other
// memory than C; if C is bf16, the product may be rounded to that before the addition.
struct MatmulArgs {
  ConstMatrix a;
  ConstMatrix b;
  Matrix c;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  ConstMatrix addend = {};
};

// Heads of a packed qkv matrix [T, Q + 2 KV]: columns are q heads, k heads, v heads.
struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0;       // keys that a query sees, with its own; 0: all before it
  double query_scalar = 0;  // scores are divided by its square root; 0: head_dim
  double softcap = 0;       // c: scores s become c tanh(s / c); 0: none

  int64_t q_size() const { return heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
  int64_t qkv_size() const { return q_size() + 2 * kv_size(); }
  double scale() const {
    return 1.0 / std::sqrt(query_scalar > 0 ? query_scalar : static_cast<double>(head_dim));
  }
};

// Turns the pairs (j, j + R/2) of a head, j < R/2, of token t by the angles whose cosines and sines
// are at [positions[t], j]; the rest of the head stays.
struct Rotation {
  const int32_t* positions = nullptr;  // [T]; null: nothing is turned
  const float* cosines = nullptr;      // [*, R/2]
  const float* sines = nullptr;
  int64_t dims = 0;  // R; 0: D

  int64_t dims_of(int64_t head_dim) const { return dims > 0 ? dims : head_dim; }
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual Stream& stream() = 0;
  // Blocks until all work is done. Returns the first failure since the last call of this or Check.
  virtual absl::Status Finish() = 0;
  // Same as Finish for failures known by now, without blocking.
  virtual absl::Status Check() = 0;

  virtual void Matmul(const MatmulArgs& args) = 0;

  // out[i, :] = scale * table[tokens[i], :] for i < tokens, zero for later rows. The caller checks
  // ids.
  virtual void EmbeddingForward(const int32_t* tokens, int64_t token_count, ConstMatrix table,
                                float scale, Matrix out) = 0;
  // d_table[tokens[i], :] ADDED scale * d_out[i, :], in order of i.
  virtual void EmbeddingBackward(const int32_t* tokens, int64_t token_count, ConstMatrix d_out,
                                 float scale, Matrix d_table) = 0;

  // inverse_rms[t] = 1 / sqrt(mean(x[t]^2) + epsilon); y = residual + x * inverse_rms * (weight +
  // its offset), where residual.data may be null, and y the residual. Rows several times as long as
  // the weight have each such part normed by itself: x[T, N x D], weight[D], inverse_rms[T, N].
  virtual void RmsNormForward(ConstMatrix x, const NormWeight& weight, double epsilon,
                              ConstMatrix residual, Matrix y, float* inverse_rms) = 0;
  // d_x = residual + (the norm's gradient); residual.data may be null. d_x may be the same matrix
  // as d_y or residual. Overwrites d_weights[plan::NormPartials(T), H] (D columns where the weight
  // has D), fp32 and dense: its column sums are the weight's gradient, for AddColumnSums at any
  // later time.
  virtual void RmsNormBackward(ConstMatrix d_y, ConstMatrix x, const NormWeight& weight,
                               const float* inverse_rms, ConstMatrix residual, Matrix d_x,
                               Matrix d_weights) = 0;

  // In place on the first `rotated_heads` heads of x. AttentionBackward turns the gradient back.
  virtual void RotaryForward(Matrix x, int64_t rotated_heads, int64_t head_dim,
                             const Rotation& rotation) = 0;

  // Attention of token i over tokens j of its sequence [cu_seqlens[s], cu_seqlens[s+1]), i - window
  // < j <= i. qkv[T, Q + 2 KV] -> out[T, Q] and log_sum_exp[heads, T] (of scores as the shape
  // scales and caps them). Rows after the last sequence are zero. cu_seqlens is host memory, read
  // before the call returns. d_qkv is the gradient of qkv before `rotation` turned q and k heads.
  virtual void AttentionForward(ConstMatrix qkv, const AttentionShape& shape,
                                std::span<const int32_t> cu_seqlens, Matrix out,
                                float* log_sum_exp) = 0;
  virtual void AttentionBackward(ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                                 const float* log_sum_exp, const AttentionShape& shape,
                                 std::span<const int32_t> cu_seqlens, const Rotation& rotation,
                                 Matrix d_qkv) = 0;
  // One new token: q[1, Q] against `length` cached keys and values [length, KV] each, those within
  // the shape's window; out[1, Q].
  virtual void AttentionDecode(ConstMatrix q, ConstMatrix keys, ConstMatrix values,
                               const AttentionShape& shape, Matrix out) = 0;

  // gate_up[T, 2 I] holds gate, then up; out[T, I] = silu(gate) * up.
  virtual void SwiGluForward(ConstMatrix gate_up, Matrix out) = 0;
  // If out.data is set, `out` is recomputed too, to the same bits.
  virtual void SwiGluBackward(ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                              Matrix out) = 0;
  // The same with plan::Gate::kGeluTanh of the gate.
  virtual void GeGluForward(ConstMatrix gate_up, Matrix out) = 0;
  virtual void GeGluBackward(ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                             Matrix out) = 0;

  // y[t, :] += bias.
  virtual void AddBias(ConstVector bias, Matrix y) = 0;
  // x *= factor.
  virtual void Scale(float factor, Matrix x) = 0;
  // y = residual + x / (1 - p) where the mask keeps an element, else residual; residual.data may be
  // null (zero), its type that of x or another. y may be the same matrix as x. The backward is the
  // same with the same mask. The mask's rows are read before the call returns.
  virtual void Dropout(ConstMatrix x, const DropoutMask& mask, ConstMatrix residual, Matrix y) = 0;
  // sums[columns] ADDED the column sums of x: a bias's gradient. x may be fp32 whatever the compute
  // type.
  virtual void AddColumnSums(ConstMatrix x, float* sums) = 0;

  // out[i, :] = in[rows[i], :], zero for rows of `out` after `count`; the inverse writes in[i, :]
  // to out[rows[i], :] and leaves the others. `rows` are distinct.
  virtual void GatherRows(ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) = 0;
  virtual void ScatterRows(ConstMatrix in, const int32_t* rows, int64_t count, Matrix out) = 0;

  // logits[R, V] (fp32; clobbered) of the first `count` rows against their labels. With softcap
  // c > 0 they are z = c tanh(logit / c), else as they are:
  //   *loss.sum ADDED the sum of weight * cross entropy;
  //   d_logits[R, V] = scale * weight * (softmax - one_hot) * dz / dlogit, zero in rows after
  //   `count`.
  // d_logits.data may be null: only the loss.
  virtual void SoftmaxCrossEntropy(Matrix logits, const LabelledRows& rows, float scale,
                                   float softcap, Matrix d_logits, const LossOut& loss) = 0;

  // Converts element by element to the type of `out`.
  virtual void Convert(ConstMatrix in, Matrix out) = 0;
  virtual void Zero(Matrix out) = 0;
};

}  // namespace shoal::worker

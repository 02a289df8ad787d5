// The CPU's operators, as functions: each is defined in the file of its name. Contracts are in
// ops.h.
#pragma once

#include <cstdint>
#include <span>

#include "worker/ops/cpu/context.h"
#include "worker/ops/ops.h"

namespace shoal::worker::cpu {

// C = op(A) op(B), or ADDED to C (see MatmulArgs): products of any size, split over the threads.
void Matmul(Context& context, const MatmulArgs& args);

// Causal attention over packed sequences; attention_blocks.h says how.
void AttentionForward(Context& context, ConstMatrix qkv, const AttentionShape& shape,
                      std::span<const int32_t> cu_seqlens, Matrix out, float* log_sum_exp);
void AttentionBackward(Context& context, ConstMatrix d_out, ConstMatrix qkv, ConstMatrix out,
                       const float* log_sum_exp, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, Matrix d_qkv);
void AttentionDecode(Context& context, ConstMatrix q, ConstMatrix keys, ConstMatrix values,
                     const AttentionShape& shape, Matrix out);

void RotaryForward(Context& context, Matrix x, int64_t rotated_heads, int64_t head_dim,
                   const Rotation& rotation);
void RotaryBackward(Context& context, Matrix d_x, int64_t rotated_heads, int64_t head_dim,
                    const Rotation& rotation);

void RmsNormForward(Context& context, ConstMatrix x, const NormWeight& weight, double epsilon,
                    ConstMatrix residual, Matrix y, float* inverse_rms);
void RmsNormBackward(Context& context, ConstMatrix d_y, ConstMatrix x, const NormWeight& weight,
                     const float* inverse_rms, ConstMatrix residual, Matrix d_x, Matrix d_weights);

void SwiGluForward(Context& context, ConstMatrix gate_up, Matrix out);
void SwiGluBackward(Context& context, ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                    Matrix out);
void GeGluForward(Context& context, ConstMatrix gate_up, Matrix out);
void GeGluBackward(Context& context, ConstMatrix d_out, ConstMatrix gate_up, Matrix d_gate_up,
                   Matrix out);

void EmbeddingForward(Context& context, const int32_t* tokens, int64_t token_count,
                      ConstMatrix table, float scale, Matrix out);
void EmbeddingBackward(Context& context, const int32_t* tokens, int64_t token_count,
                       ConstMatrix d_out, float scale, Matrix d_table);

void SoftmaxCrossEntropy(Context& context, Matrix logits, const LabelledRows& rows, float scale,
                         float softcap, Matrix d_logits, const LossOut& loss);

void AddBias(Context& context, ConstVector bias, Matrix y);
void Scale(Context& context, float factor, Matrix x);
void Dropout(Context& context, ConstMatrix x, const DropoutMask& mask, ConstMatrix residual,
             Matrix y);
void AddColumnSums(Context& context, ConstMatrix x, float* sums);
void Convert(Context& context, ConstMatrix in, Matrix out);
void Zero(Context& context, Matrix out);
void GatherRows(Context& context, ConstMatrix in, const int32_t* rows, int64_t count, Matrix out);
void ScatterRows(Context& context, ConstMatrix in, const int32_t* rows, int64_t count, Matrix out);

}  // namespace shoal::worker::cpu

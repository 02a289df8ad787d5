#include "core/plan/memory/stage_scratch.h"

#include <algorithm>

#include "core/model/adapters.h"
#include "core/model/tensor_bytes.h"
#include "core/plan/memory/activation_bytes.h"

namespace shoal::plan {

int64_t MicrobatchInputBytes(int64_t tokens) {
  TensorBytes input(DType::kF32, MicrobatchRows(tokens));
  input.Floats(1).Floats(1);                                             // ids, positions
  input.Bytes(4 * tokens).Bytes(4 * tokens).Bytes(4 * tokens).Bytes(8);  // of targets, and loss
  input.Bytes(4 * tokens);  // log-probabilities of targets, for pairs
  return input.bytes();
}

int64_t ChunkScratchBytes(const ModelSpec& spec, DType compute, Recompute recompute,
                          int64_t tokens) {
  const int64_t rows = MicrobatchRows(tokens);
  TensorBytes gradients(compute, rows);
  gradients.Matrix(2 * spec.mlp().intermediate).Matrix(spec.hidden);  // gate and up, middle
  gradients.Matrix(spec.attention().qkv_size());
  for (const bool normed : {spec.kind().norms_inputs(), spec.kind().norms_outputs()}) {
    if (normed) {
      gradients.Matrix(spec.hidden).Matrix(spec.hidden);  // beside the norms
    }
  }
  gradients.Matrix(spec.mlp().intermediate).Matrix(spec.attention().q_size());
  gradients.Matrix(spec.hidden).Matrix(spec.hidden);  // between blocks
  gradients.Matrix(AdapterRanks(spec)).Matrix(AdaptedWidth(spec));
  gradients.Bytes(BlockNormPartialBytes(spec, rows));
  return gradients.bytes() + BlockActivationBytes(spec, compute, Recompute::kNone, rows) -
         BlockActivationBytes(spec, compute, recompute, rows);
}

int64_t NormScratchBytes(const ModelSpec& spec, DType compute, int64_t tokens) {
  const int64_t rows = MicrobatchRows(tokens);
  TensorBytes norm(compute, rows);
  norm.Matrix(spec.hidden).Floats(1).Bytes(NormPartialBytes(spec, rows));
  return norm.bytes();
}

int64_t LogitBytes(const ModelSpec& spec, DType compute, int64_t tokens,
                   const LossChunk& loss_chunk) {
  const int64_t rows = loss_chunk.Rows(spec.vocabulary, tokens);
  TensorBytes chunk(compute, rows);
  const int64_t stride = LossChunk::Stride(spec.vocabulary);
  chunk.Matrix(spec.hidden).Matrix(spec.hidden).Floats(stride);
  if (compute != DType::kF32) {
    chunk.Matrix(stride);
  }
  return chunk.bytes();
}

int64_t StageOwnBytes(const ModelSpec& spec, DType compute, Recompute recompute, bool head,
                      std::span<const int64_t> tokens, const LossChunk& loss_chunk) {
  int64_t inputs = 0;
  int64_t scratch = 0;
  for (const int64_t count : tokens) {
    inputs += MicrobatchInputBytes(count);
    scratch = std::max(scratch, ChunkScratchBytes(spec, compute, recompute, count) +
                                    (head ? NormScratchBytes(spec, compute, count) +
                                                LogitBytes(spec, compute, count, loss_chunk)
                                          : 0));
  }
  return inputs + scratch;
}

}  // namespace shoal::plan

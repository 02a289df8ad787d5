#include "core/plan/memory/activation_bytes.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/model/adapters.h"
#include "core/model/tensor_bytes.h"
#include "core/plan/memory/norm_partials.h"

namespace shoal::plan {
namespace {

constexpr int64_t kRowPadding = 64;

// What `light` makes again: the norms' outputs of inputs, and the activation function's.
void AddLightOutputs(const ModelSpec& spec, TensorBytes& block) {
  if (spec.kind().norms_inputs()) {
    block.Matrix(spec.hidden).Matrix(spec.hidden);
  }
  block.Matrix(spec.mlp().intermediate);
}

}  // namespace

int64_t NormPartialBytes(const ModelSpec& spec, int64_t rows) {
  return 4 * NormPartials(rows) * spec.hidden;
}

int64_t BlockNormPartialBytes(const ModelSpec& spec, int64_t rows) {
  const Attention& attention = spec.attention();
  TensorBytes partials(DType::kF32, NormPartials(rows));
  for (const bool normed : {spec.kind().norms_inputs(), spec.kind().norms_outputs()}) {
    if (normed) {
      partials.Matrix(spec.hidden).Matrix(spec.hidden);
    }
  }
  if (attention.qk_norm != QkNorm::kNone) {
    partials.Matrix(attention.q_size() / attention.q_norms());
    partials.Matrix(attention.kv_size() / attention.k_norms());
  }
  return partials.bytes();
}

int64_t MicrobatchRows(int64_t tokens) { return RoundUp(tokens, kRowPadding); }

int64_t BlockActivationBytes(const ModelSpec& spec, DType compute, Recompute recompute,
                             int64_t rows) {
  const Attention& attention = spec.attention();
  TensorBytes block(compute, rows);
  block.Matrix(spec.hidden);  // input
  if (recompute == Recompute::kFull) {
    return block.bytes();
  }
  block.Matrix(attention.qkv_size());
  block.Matrix(attention.q_size());  // attention
  block.Floats(attention.heads);     // log-sum-exp
  if (attention.qk_norm != QkNorm::kNone) {
    block.Matrix(attention.q_size() + attention.kv_size());         // q and k before their norms
    block.Floats(attention.q_norms()).Floats(attention.k_norms());  // inverse rms
  }
  block.Matrix(spec.hidden);                  // middle
  block.Matrix(2 * spec.mlp().intermediate);  // gate and up
  block.Matrix(AdapterRanks(spec));
  if (spec.kind().norms_inputs()) {
    block.Floats(1).Floats(1);  // inverse rms
  }
  if (spec.kind().norms_outputs()) {
    block.Matrix(spec.hidden).Matrix(spec.hidden);  // both outputs before their norms
    block.Floats(1).Floats(1);                      // inverse rms
  }
  if (recompute == Recompute::kNone) {
    AddLightOutputs(spec, block);
  }
  return block.bytes();
}

int64_t BlockGradientBytes(const ModelSpec& spec, DType compute, Recompute recompute,
                           int64_t rows) {
  TensorBytes block(compute, rows);
  block.Matrix(spec.hidden).Matrix(2 * spec.mlp().intermediate);  // d output, d gate_up
  block.Matrix(spec.hidden).Matrix(spec.attention().qkv_size());  // d middle, d qkv
  block.Matrix(AdapterRanks(spec));
  block.Bytes(BlockNormPartialBytes(spec, rows));
  if (spec.kind().norms_outputs()) {
    block.Matrix(spec.hidden).Matrix(spec.hidden);  // of both outputs before their norms
  }
  if (recompute != Recompute::kNone) {
    AddLightOutputs(spec, block);
  }
  if (recompute == Recompute::kFull) {
    block.Matrix(spec.attention().q_size());  // attention
    block.Matrix(AdapterRanks(spec));
    if (!spec.kind().norms_inputs()) {
      block.Matrix(spec.hidden);  // middle
    }
  }
  return block.bytes();
}

int64_t MessageBytes(const ModelSpec& spec, DType compute, int64_t tokens) {
  return TensorBytes(compute, MicrobatchRows(tokens)).Matrix(spec.hidden).bytes();
}

ChunkBytes PlanChunkBytes(const ModelSpec& spec, DType compute, UnitRange units,
                          Recompute recompute, int64_t tokens) {
  const int64_t rows = MicrobatchRows(tokens);
  const auto layers = static_cast<int>(spec.layers);
  const int64_t blocks = std::min(units.end(), layers + 1) - std::max(units.first, 1);
  const int64_t stream = MessageBytes(spec, compute, tokens);
  ChunkBytes bytes{.activations = blocks * BlockActivationBytes(spec, compute, recompute, rows),
                   .gradients = blocks * BlockGradientBytes(spec, compute, recompute, rows),
                   .message = stream};
  if (units.contains(0)) {
    bytes.gradients += stream;
  }
  if (units.contains(layers + 1)) {
    bytes.activations += stream;
  }
  return bytes;
}

}  // namespace shoal::plan

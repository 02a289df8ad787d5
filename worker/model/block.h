// One transformer block: forward, backward for its input (B) and backward for its weights (W).
//
// BlockActivations holds everything that forward keeps for backward, BlockGradients everything that
// B leaves for W: nothing is hidden, so a pipeline can move, drop or recompute any of it. W may run
// at any time after B.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "worker/model/access/unit_access.h"
#include "worker/model/lora/adapter.h"
#include "worker/model/workspace.h"
#include "worker/ops/ops.h"

namespace shoal::worker {

// Where a block unit's tensors are (plan::BuildUnits), in elements from the unit's start; -1: there
// is none.
struct BlockLayout {
  int64_t input_norm = -1;             // [H]
  int64_t qkv = 0;                     // [Q + 2 KV, H]: q, k and v lie one after the other
  int64_t q_bias = -1;                 // [Q]
  int64_t k_bias = -1;                 // [KV]
  int64_t v_bias = -1;                 // [KV]
  int64_t q_norm = -1;                 // [D] or [Q]
  int64_t k_norm = -1;                 // [D] or [KV]
  int64_t output = 0;                  // [H, Q]
  int64_t output_bias = -1;            // [H]
  int64_t attention_output_norm = -1;  // [H]
  int64_t mlp_norm = -1;               // [H]
  int64_t gate_up = 0;                 // [2 I, H]: gate, then up
  int64_t gate_bias = -1;              // [I]
  int64_t up_bias = -1;                // [I]
  int64_t down = 0;                    // [H, I]
  int64_t down_bias = -1;              // [H]
  int64_t mlp_output_norm = -1;        // [H]
};

// CHECK-fails for a unit of a spec that ValidateLayout refuses.
BlockLayout MakeBlockLayout(const plan::UnitSpec& unit);
// Checks that q, k and v (and gate and up), which are multiplied as one matrix, have no padding
// between them.
absl::Status ValidateLayout(const plan::ModelSpec& spec);

AttentionShape ShapeOf(const plan::Attention& attention);

// A block's shape and where its weights are at the moment (compute type).
struct BlockWeights {
  const plan::ModelSpec& spec;
  const plan::BlockKind& kind;
  const BlockLayout& layout;
  const void* data;
  DType dtype;
  AdapterWeights adapters = {};
};

// What attention and rotary embedding need of a microbatch.
struct SequenceContext {
  std::span<const int32_t> cu_seqlens;  // host
  Rotation rotation;
};

// Where to take a block's activations from, by what needs them. They may be the same carver.
struct ActivationCarvers {
  Carver& input;      // input: B, and W where it is not normed
  Carver& outputs;    // of the norms of inputs and the activation function: W
  Carver& attention;  // attention, middle where it is not normed, inputs of B of adapters: B and W
  Carver& rest;       // all else: B
  Carver& scratch;    // nothing that is needed later
};

struct BlockActivations {
  Matrix input;                  // [T, H]
  float* input_inverse_rms;      // [T], where inputs are normed
  Matrix input_normed;           // [T, H], likewise
  Matrix qk;                     // [T, Q + KV]: q and k before their norms, if they have any
  float* q_inverse_rms;          // [T, heads], or [T] of a norm over all of Q
  float* k_inverse_rms;          // [T, kv_heads], or [T]
  Matrix qkv;                    // [T, Q + 2 KV], rotated
  Matrix attention;              // [T, Q]
  float* log_sum_exp;            // [heads, T]
  Matrix attention_output;       // [T, H]: before its norm, where outputs are normed
  float* attention_inverse_rms;  // [T], likewise
  Matrix middle;                 // [T, H]: input + attention's output
  float* middle_inverse_rms;     // [T], where inputs are normed
  Matrix middle_normed;          // [T, H], likewise
  Matrix gate_up;                // [T, 2 I]
  Matrix activated;              // [T, I]
  Matrix mlp_output;             // [T, H]: before its norm, where outputs are normed
  float* mlp_inverse_rms;        // [T], likewise
  AdapterMemory adapters;        // where the model has adapters

  static BlockActivations Carve(const ActivationCarvers& carvers, const plan::ModelSpec& spec,
                                DType compute, int64_t rows);
  static BlockActivations Carve(Carver& carver, const plan::ModelSpec& spec, DType compute,
                                int64_t rows) {
    return Carve({carver, carver, carver, carver, carver}, spec, compute, rows);
  }
};

struct BlockGradients {
  ConstMatrix output;       // [T, H]: given; the others are B's results
  Matrix mlp_output;        // [T, H], where outputs are normed
  Matrix gate_up;           // [T, 2 I]
  Matrix middle;            // [T, H]
  Matrix attention_output;  // [T, H], where outputs are normed
  Matrix qkv;               // [T, Q + 2 KV]
  Matrix reduced;           // [T, ranks], where the model has adapters
  // Partial sums for the weights of the norms that there are, [plan::NormPartials(T), *], fp32.
  Matrix mlp_output_norm;
  Matrix mlp_norm;
  Matrix attention_output_norm;
  Matrix input_norm;
  Matrix q_norm;
  Matrix k_norm;
  // Scratch of B; W does not need it.
  Matrix middle_normed;  // [T, H], where inputs are normed
  Matrix input_normed;   // [T, H], likewise
  Matrix activated;      // [T, I]
  Matrix attention;      // [T, Q]

  // Carves everything except `output`.
  static BlockGradients Carve(Carver& results, Carver& scratch, const plan::ModelSpec& spec,
                              DType compute, int64_t rows);
};

// Reads activations.input; overwrites output[T, H] (also with intermediate values).
void BlockForward(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
                  const BlockActivations& activations, Matrix output);
// The two parts of BlockForward around attention, for decoding with a cache.
void BlockForwardQkv(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
                     const BlockActivations& activations);
void BlockForwardOutput(Ops& ops, const BlockWeights& weights, const BlockActivations& activations,
                        Matrix output);

// B: from gradients.output to d_input[T, H] (overwritten; may not be gradients.output). Recomputes,
// to the same bits, the activations that forward did not keep.
void BlockBackwardInput(Ops& ops, const BlockWeights& weights, const SequenceContext& sequences,
                        const BlockActivations& activations, plan::Recompute recompute,
                        const BlockGradients& gradients, Matrix d_input);
// W: ADDS to the unit's gradient, or writes it if empty.
void BlockBackwardWeights(Ops& ops, const plan::ModelSpec& spec, const BlockLayout& layout,
                          const BlockActivations& activations, const BlockGradients& gradients,
                          const UnitGradient& unit_gradient);
// W of a layer's adapters, with the dropout of forward and B.
void AdaptersBackwardWeights(Ops& ops, const BlockLayout& layout,
                             const plan::AdapterLayout& adapters, const DropoutMask& dropout,
                             const BlockActivations& activations, const BlockGradients& gradients,
                             const UnitGradient& unit_gradient);

}  // namespace shoal::worker

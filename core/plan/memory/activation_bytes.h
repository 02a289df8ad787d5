// How many bytes a chunk's activations of one microbatch take, and what its backward leaves behind:
// pure formulas over the shapes. The planner and the simulation count with them, and the model
// carves exactly as they say (tests/memory_plan_agreement_test.cc holds one against the other).
//
// T rows (tokens rounded up to 64), c bytes of an element of the compute type, H hidden, Q = heads
// x head_dim, K = kv_heads x head_dim, I intermediate, h heads. Each tensor begins at a multiple of
// 64 bytes, which T makes of every size here but those of partial sums, which are rounded up.
//
// Activations: from the begin of F to the end of W, or what an offload moves. For each block of the
// chunk, by recompute:
//
//   tensor               bytes         none  light  full
//   input                c T H         yes   yes    yes
//   input_inverse_rms    4 T           yes   yes
//   input_normed         c T H         yes
//   qkv                  c T (Q + 2K)  yes   yes
//   attention            c T Q         yes   yes
//   log_sum_exp          4 T h         yes   yes
//   middle               c T H         yes   yes
//   middle_inverse_rms   4 T           yes   yes
//   middle_normed        c T H         yes
//   gate_up              2 c T I       yes   yes
//   activated            c T I         yes
//
//   and for a chunk with the head, any recompute: last (the head's input), c T H. The final norm
//   runs in the backward, in scratch. The embedding keeps nothing, so a chunk of the embedding
//   alone has 0 bytes. Token ids, positions and targets are the step's, not in here.
//
// Gradients: from the begin of a split B to the end of its W. For each block of the chunk:
//
//   tensor                bytes         none  light  full
//   d output              c T H         yes   yes    yes
//   d gate_up             2 c T I       yes   yes    yes
//   d attention_norm      4 P H         yes   yes    yes    P partial sums
//   (core/plan/memory/norm_partials.h) d middle              c T H         yes   yes    yes d qkv
//   c T (Q + 2K)  yes   yes    yes d input_norm          4 P H         yes   yes    yes
//   input_normed          c T H               yes    yes    made again by B for W middle_normed
//   c T H               yes    yes activated             c T I               yes    yes attention
//   c T Q                      yes
//
//   and for a chunk with the embedding: d of its output, c T H. The head leaves nothing: its
//   weights' gradient is made in B. d middle_normed, d input_normed, d activated and d attention,
//   and with full recompute inverse rms, qkv, log_sum_exp, middle and gate_up, are scratch of B,
//   which does not make the output again.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "core/plan/schedule/layer_split.h"

namespace shoal::plan {

// Rows of a microbatch are padded to a multiple of 64.
int64_t MicrobatchRows(int64_t tokens);

// The partial sums of a norm's weight's gradient.
int64_t NormPartialBytes(const ModelSpec& spec, int64_t rows);

// Of one block.
int64_t BlockActivationBytes(const ModelSpec& spec, DType compute, Recompute recompute,
                             int64_t rows);
int64_t BlockGradientBytes(const ModelSpec& spec, DType compute, Recompute recompute, int64_t rows);

struct ChunkBytes {
  int64_t activations = 0;
  int64_t gradients = 0;  // of a split backward; a joined one holds none
  int64_t message = 0;    // [T, H] of the compute type: what goes between chunks, either way

  bool operator==(const ChunkBytes&) const = default;
};

// Of what goes between chunks, either way: [rows, hidden] of the compute type.
int64_t MessageBytes(const ModelSpec& spec, DType compute, int64_t tokens);

// Of a chunk that has these units, for a microbatch of that many tokens.
ChunkBytes PlanChunkBytes(const ModelSpec& spec, DType compute, UnitRange units,
                          Recompute recompute, int64_t tokens);

}  // namespace shoal::plan

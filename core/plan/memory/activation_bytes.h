// How many bytes a chunk's activations of one microbatch take, and what its backward leaves behind:
// pure formulas over the shapes. docs/pipeline.md lists the tensors. The planner and the simulation
// use these formulas, and the model carves its memory exactly as they say
// (tests/memory_plan_agreement_test.cc compares the two).
//
// Each tensor begins at a multiple of 64 bytes. Padding rows to 64 makes every size here such a
// multiple, except those of partial sums, which are rounded up.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "core/plan/schedule/layer_split.h"

namespace shoal::plan {

// Rows of a microbatch: its tokens, padded to a multiple of 64.
int64_t MicrobatchRows(int64_t tokens);

// Size of the partial sums of the gradient of the last norm's weight, and of all of a block's.
int64_t NormPartialBytes(const ModelSpec& spec, int64_t rows);
int64_t BlockNormPartialBytes(const ModelSpec& spec, int64_t rows);

// For one block.
int64_t BlockActivationBytes(const ModelSpec& spec, DType compute, Recompute recompute,
                             int64_t rows);
int64_t BlockGradientBytes(const ModelSpec& spec, DType compute, Recompute recompute, int64_t rows);

struct ChunkBytes {
  int64_t activations = 0;
  int64_t gradients = 0;  // of a split backward; a joined one leaves none
  int64_t message = 0;    // [T, H] of the compute type: what passes between chunks, either way

  bool operator==(const ChunkBytes&) const = default;
};

// Size of what passes between chunks, either way: [rows, hidden] of the compute type.
int64_t MessageBytes(const ModelSpec& spec, DType compute, int64_t tokens);

// For a chunk with these units, and a microbatch of `tokens` tokens.
ChunkBytes PlanChunkBytes(const ModelSpec& spec, DType compute, UnitRange units,
                          Recompute recompute, int64_t tokens);

}  // namespace shoal::plan

// What training, evaluation and generation share on the way forward: units held by scope, the
// memory of a microbatch, and the walk from tokens to the last block's output.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/loss/linear_cross_entropy.h"
#include "worker/model/batch.h"
#include "worker/model/block.h"
#include "worker/model/transformer.h"
#include "worker/model/unit_access.h"

namespace shoal::worker {

// A unit's weights, released when this goes. Move-only.
class HeldUnit {
 public:
  // Checks that the view is what the model computes with.
  static absl::StatusOr<HeldUnit> Get(const Transformer& model, UnitSource& source, int unit);
  ~HeldUnit();
  HeldUnit(HeldUnit&& other) noexcept;
  HeldUnit& operator=(HeldUnit&&) = delete;

  ConstMatrix matrix(int64_t offset, int64_t rows, int64_t columns) const;
  ConstVector vector(int64_t offset, int64_t count) const;
  BlockWeights block(const Transformer& model) const;

 private:
  HeldUnit(UnitSource* source, int unit, WeightsView view)
      : source_(source), unit_(unit), view_(view) {}
  UnitSource* source_;
  int unit_;
  WeightsView view_;
};

// Rows of a microbatch are padded to a multiple of this (see ops.h, Padding).
inline constexpr int64_t kRowPadding = 64;

// The memory of one microbatch of T rows (padding included), N of them with a target.
struct MicrobatchMemory {
  int64_t rows = 0;
  int32_t* tokens = nullptr;         // [T]
  int32_t* positions = nullptr;      // [T]
  int32_t* target_rows = nullptr;    // [N]
  int32_t* target_labels = nullptr;  // [N]
  double* loss_sum = nullptr;
  std::vector<BlockActivations> blocks;  // in evaluation they share all but the input
  Matrix last;                           // [T, H]: the last block's output
  Matrix normed;                         // [T, H]
  float* inverse_rms = nullptr;          // [T]
  CrossEntropyBuffers chunk;
  // Training alone:
  BlockGradients gradients;
  Matrix d_hidden[2];  // [T, H] each: gradients of a block's output and input, by turns

  static MicrobatchMemory Carve(Carver& carver, const plan::ModelSpec& spec, DType compute,
                                int64_t rows, int64_t targets, bool training);
};

// Bytes of activations and gradients of a microbatch of that many tokens, all of which have a
// target: what planning counts for a worker, besides weights and gradients.
int64_t MicrobatchBytes(const plan::ModelSpec& spec, DType compute, int64_t tokens, bool training);

// A microbatch in device memory.
struct PreparedMicrobatch {
  PreparedMicrobatch() = default;
  PreparedMicrobatch(PreparedMicrobatch&&) = default;  // not copied: `targets` refers to a member

  MicrobatchMemory memory;
  SequenceContext sequences;
  std::vector<int32_t> host_target_rows;
  Targets targets;
  int64_t token_count = 0;
};

// Checks the batch, sizes the workspace and copies the batch in. Valid until the next call.
absl::StatusOr<PreparedMicrobatch> Prepare(Transformer& model, const PackedBatch& batch,
                                           bool training);

// Embedding and blocks: fills memory.blocks and memory.last.
absl::Status ForwardBlocks(Transformer& model, const PreparedMicrobatch& microbatch,
                           UnitSource& source);
// The final norm: memory.last -> memory.normed.
void ForwardNorm(Transformer& model, const MicrobatchMemory& memory, const HeldUnit& head);

}  // namespace shoal::worker

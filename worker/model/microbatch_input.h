// A microbatch as the model reads it: token ids, positions and targets in device memory, and the
// place where its loss is summed.
//
// Make it from a PackedBatch, then carve, then load; it keeps nothing of the batch but what it
// copied. Carving may be repeated (a Workspace does); load after the last one. The destructor waits
// for the copies of its loading, which read this object's memory; if they do not end, as on a
// device that hangs, it logs that and leaks the memory to them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/loss/linear_cross_entropy.h"
#include "worker/model/batch/batch.h"
#include "worker/model/batch/batch_pairs.h"
#include "worker/model/block.h"
#include "worker/model/workspace.h"
#include "worker/ops/rotary_table.h"

namespace shoal::worker {

class MicrobatchInput {
 public:
  // InvalidArgument for a batch that Validate refuses.
  static absl::StatusOr<MicrobatchInput> Create(const PackedBatch& batch, int64_t vocabulary);
  ~MicrobatchInput();
  MicrobatchInput(MicrobatchInput&&) = default;

  int64_t tokens() const { return static_cast<int64_t>(host_.tokens.size()); }
  int64_t rows() const { return static_cast<int64_t>(host_.positions.size()); }  // padding included
  int64_t target_count() const { return static_cast<int64_t>(host_.target_rows.size()); }
  int32_t longest() const { return longest_; }  // sequence, in tokens

  void Carve(Carver& carver);
  // Carves what a microbatch of that many tokens takes, all of them targets.
  static void CarveLargest(Carver& carver, int64_t tokens);
  // Puts the copies to the device, and the zeroing of the loss, on the compute stream.
  void Load(Stream& stream);

  const int32_t* token_ids() const { return memory_.tokens; }  // [rows], device; padding undefined
  // For a block unit. Refers to this and to the tables, which Reserve may move.
  SequenceContext sequences(const RotaryTables& rotary, int unit) const;
  // Of the inputs of a block's adapters. Refers to this.
  DropoutMask dropout(int unit) const;
  Targets targets() const;
  double* loss_sum() const { return memory_.loss_sum; }  // device

  // Of pairs; else null.
  const BatchPairs* pairs() const { return pairs_.get(); }
  float* log_probabilities() const {  // [N], device; null: nobody asks
    return pairs_ == nullptr ? nullptr : memory_.log_probabilities;
  }
  // Takes log_probabilities and puts what targets count for on the device. Waits for the stream.
  absl::Status ComparePairs(Stream& stream) const;
  // With what was summed at loss_sum, unless it is of pairs.
  MicrobatchResult ResultOf(double loss) const;

 private:
  struct Memory {
    int32_t* tokens = nullptr;         // [T]
    int32_t* positions = nullptr;      // [T]
    int32_t* target_rows = nullptr;    // [N]
    int32_t* target_labels = nullptr;  // [N]
    float* target_weights = nullptr;   // [N]
    double* loss_sum = nullptr;
    float* log_probabilities = nullptr;  // [N], for pairs
    static Memory Carve(Carver& carver, int64_t rows, int64_t targets);
  };

  // What Memory is copied from.
  struct Host {
    std::vector<int32_t> tokens;
    std::vector<int32_t> positions;  // [T]
    std::vector<int32_t> target_rows;
    std::vector<int32_t> target_labels;
    std::vector<float> target_weights;
  };

  MicrobatchInput() = default;
  // Keeps, for the life of the process, what copies that did not end may yet read.
  static void Leave(Host host);

  Host host_;
  std::vector<int32_t> cu_seqlens_;
  DropoutMask dropout_;  // without rows
  std::vector<DropoutRow> dropout_rows_;
  int32_t longest_ = 0;
  Memory memory_;
  std::unique_ptr<BatchPairs> pairs_;
  std::unique_ptr<Event> loaded_;
};

}  // namespace shoal::worker

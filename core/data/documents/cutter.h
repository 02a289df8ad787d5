// Cuts documents into samples (train.objective: pretrain).
//
// A sample begins with the token that the one before it ended with, so that every token but the
// first of what is cut together is predicted once, from what lies before it in its sample. With
// Documents::kPack each document is cut by itself, and nothing of another is seen; the planner
// packs what is short. With kConcatenate all documents are one text, whose samples are full but for
// the last.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "core/job/job.h"

namespace shoal::worker {

class DocumentCutter {
 public:
  // Takes a sample: its tokens, and what the loss of predicting each weighs, of which the first has
  // no meaning. Both are valid until it returns.
  using Take = std::function<absl::Status(std::span<const int32_t>, std::span<const float>)>;

  // Samples have at most so many tokens, two at least.
  DocumentCutter(plan::Documents how, int64_t max_tokens, Take take);

  // `weight` is that of each token of the document.
  absl::Status Add(std::span<const int32_t> document, float weight);
  // Call once, behind the last document.
  absl::Status Finish();

 private:
  absl::Status TakeRest();

  const plan::Documents how_;
  const size_t max_tokens_;
  const Take take_;
  std::vector<int32_t> tokens_;
  std::vector<float> weights_;
};

}  // namespace shoal::worker

#include "core/data/documents/cutter.h"

#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::worker {

DocumentCutter::DocumentCutter(plan::Documents how, int64_t max_tokens, Take take)
    : how_(how), max_tokens_(static_cast<size_t>(max_tokens)), take_(std::move(take)) {
  SHOAL_CHECK(max_tokens >= 2);
}

absl::Status DocumentCutter::Add(std::span<const int32_t> document, float weight) {
  tokens_.insert(tokens_.end(), document.begin(), document.end());
  weights_.resize(tokens_.size(), weight);
  size_t begin = 0;
  for (; tokens_.size() - begin >= max_tokens_; begin += max_tokens_ - 1) {
    SHOAL_RETURN_IF_ERROR(take_(std::span(tokens_).subspan(begin, max_tokens_),
                                std::span(weights_).subspan(begin, max_tokens_)));
  }
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<int64_t>(begin));
  weights_.erase(weights_.begin(), weights_.begin() + static_cast<int64_t>(begin));
  return how_ == plan::Documents::kPack ? TakeRest() : absl::OkStatus();
}

absl::Status DocumentCutter::Finish() { return TakeRest(); }

// The last token of a sample that was taken predicts nothing more.
absl::Status DocumentCutter::TakeRest() {
  if (tokens_.size() > 1) {
    SHOAL_RETURN_IF_ERROR(take_(tokens_, weights_));
  }
  tokens_.clear();
  weights_.clear();
  return absl::OkStatus();
}

}  // namespace shoal::worker

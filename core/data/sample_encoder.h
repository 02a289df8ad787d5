// Encodes a JSONL sample into the tokens and labels of the token file: template, mask, shift, and
// the limit on length.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/chat_template.h"
#include "core/data/jsonl.h"
#include "core/data/tokenizer/tokenizer.h"

namespace shoal::worker {

struct EncodedSample {
  std::vector<int32_t> tokens;
  std::vector<int32_t>
      labels;  // labels[i] is the token after tokens[i], or -100; the last is always -100
  int64_t targets = 0;
  std::vector<float> weights;  // of the labels; empty: 1 each
  int64_t silent = 0;          // messages of the assistant of which the template wrote nothing
};

// labels[i] = next[i + 1]: shifts by one, after which a label belongs to the position that predicts
// it.
std::vector<int32_t> ShiftLabels(std::span<const int32_t> unshifted);

// Cuts to `tokens` tokens.
void Truncate(EncodedSample& sample, int64_t tokens);

// Immutable; threads may share one. The tokenizer must outlive it.
class SampleEncoder {
 public:
  // `tokenizer` may be null: then samples must come as input_ids. `vocabulary` is the model's
  // number of rows; FailedPrecondition if the tokenizer has more tokens.
  static absl::StatusOr<SampleEncoder> Create(const Tokenizer* tokenizer,
                                              const TemplateChoice& choice,
                                              const formats::SpecialTokens& special,
                                              int64_t vocabulary);

  // `where` is the sample's "FILE:LINE".
  absl::StatusOr<EncodedSample> Encode(const JsonlSample& sample, std::string_view where) const;

  const std::optional<ChatTemplate>& chat() const { return chat_; }
  const Tokenizer* tokenizer() const { return tokenizer_; }
  int64_t vocabulary() const { return vocabulary_; }
  plan::Template kind() const { return kind_; }

 private:
  SampleEncoder() = default;
  const Tokenizer* tokenizer_ = nullptr;
  std::optional<ChatTemplate> chat_;
  absl::Status no_chat_;  // why there is no chat template
  int64_t vocabulary_ = 0;
  plan::Template kind_ = plan::Template::kPlain;
};

}  // namespace shoal::worker

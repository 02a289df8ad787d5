// Encodes a JSONL sample into the tokens and labels of the token file: template, mask, shift, and
// the limit on length. Of a document all tokens are learnt: those of its text, which is never read
// as special tokens, and the end of sequence behind it; begin of sequence is before it where the
// tokenizer puts one. A pair is two conversations, of which what follows the prompt is learnt.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/chat_template.h"
#include "core/data/jsonl.h"
#include "core/data/token_file.h"
#include "core/data/tokenizer/tokenizer.h"

namespace shoal::worker {

struct EncodedSample {
  std::vector<int32_t> tokens;
  std::vector<int32_t>
      labels;  // labels[i] is the token after tokens[i], or -100; the last is always -100
  int64_t targets = 0;
  std::vector<float> weights;  // of the labels; empty: 1 each
  formats::ChosenPart chosen;  // of a pair, whose two sequences stand one after the other
  int64_t silent = 0;          // as Conversation has them
  bool rewritten = false;
};

// labels[i] = next[i + 1]: shifts by one, after which a label belongs to the position that predicts
// it.
std::vector<int32_t> ShiftLabels(std::span<const int32_t> unshifted);

// Cuts to `tokens` tokens; of a pair, each of its sequences.
void Truncate(EncodedSample& sample, int64_t tokens);

// Returns a sample of documents, of which all but the first token are learnt; weights[i] is of
// tokens[i].
EncodedSample SampleOfText(std::span<const int32_t> tokens, std::span<const float> weights);

// What is learnt of a sample.
struct Learning {
  plan::Objective objective = plan::Objective::kSft;
  plan::TrainOn train_on = plan::TrainOn::kAll;  // of conversations
  // That TrainOn::kEach may make of a conversation, in all, since they grow with the square of its
  // replies.
  int64_t most_tokens = int64_t{1} << 25;
};

// Immutable; threads may share one. The tokenizer must outlive it.
class SampleEncoder {
 public:
  // `tokenizer` may be null: then samples must come as input_ids. `vocabulary` is the model's
  // number of rows; FailedPrecondition if the tokenizer has more tokens.
  static absl::StatusOr<SampleEncoder> Create(const Tokenizer* tokenizer,
                                              const TemplateChoice& choice,
                                              const formats::SpecialTokens& special,
                                              int64_t vocabulary, const Learning& learning = {});

  // `where` is the sample's "FILE:LINE". One, or with TrainOn::kEach those that the sample stands
  // for, of learning().most_tokens at most; of a document, whatever its length.
  absl::StatusOr<std::vector<EncodedSample>> Encode(const JsonlSample& sample,
                                                    std::string_view where) const;

  const std::optional<ChatTemplate>& chat() const { return chat_; }
  const Tokenizer* tokenizer() const { return tokenizer_; }
  int64_t vocabulary() const { return vocabulary_; }
  plan::Template kind() const { return kind_; }
  const Learning& learning() const { return learning_; }
  // Two encoders with equal signatures and days, over the same tokenizer, write the same tokens
  // around what they learn. Empty: text is refused.
  std::string Signature() const;

 private:
  SampleEncoder() = default;
  absl::StatusOr<EncodedSample> EncodeChat(std::span<const ChatMessage> messages,
                                           const JsonlSample& sample, std::string_view where) const;
  absl::StatusOr<EncodedSample> EncodeDocument(const JsonlSample& sample,
                                               std::string_view where) const;
  absl::StatusOr<EncodedSample> EncodePair(const JsonlSample& sample, std::string_view where) const;
  absl::StatusOr<std::vector<EncodedSample>> EncodeReplies(const JsonlSample& sample,
                                                           std::string_view where) const;
  const Tokenizer* tokenizer_ = nullptr;
  std::optional<ChatTemplate> chat_;
  absl::Status no_text_;  // why neither conversations nor documents can be encoded
  Learning learning_;
  int32_t end_ = -1;  // behind a document
  int64_t vocabulary_ = 0;
  plan::Template kind_ = plan::Template::kPlain;
};

}  // namespace shoal::worker

#include "core/data/sample_encoder.h"

#include <algorithm>

#include "core/base/status.h"
#include "core/data/token_file.h"

namespace shoal::worker {
namespace {

int64_t CountTargets(std::span<const int32_t> labels) {
  return static_cast<int64_t>(labels.size()) -
         std::count(labels.begin(), labels.end(), formats::kIgnoredLabel);
}

}  // namespace

std::vector<int32_t> ShiftLabels(std::span<const int32_t> unshifted) {
  std::vector<int32_t> labels(unshifted.size(), formats::kIgnoredLabel);
  if (!unshifted.empty()) {
    std::copy(unshifted.begin() + 1, unshifted.end(), labels.begin());
  }
  return labels;
}

void Truncate(EncodedSample& sample, int64_t tokens) {
  if (tokens < 1 || static_cast<int64_t>(sample.tokens.size()) <= tokens) {
    return;
  }
  sample.tokens.resize(static_cast<size_t>(tokens));
  sample.labels.resize(static_cast<size_t>(tokens));
  sample.labels.back() = formats::kIgnoredLabel;  // what follows has been cut off
  sample.targets = CountTargets(sample.labels);
}

absl::StatusOr<SampleEncoder> SampleEncoder::Create(const Tokenizer* tokenizer,
                                                    const TemplateChoice& choice,
                                                    const formats::SpecialTokens& special,
                                                    int64_t vocabulary) {
  SampleEncoder encoder;
  encoder.tokenizer_ = tokenizer;
  encoder.kind_ = choice.kind;
  encoder.vocabulary_ = vocabulary;
  if (tokenizer == nullptr) {
    encoder.no_chat_ = FailedPrecondition(
        "text needs the model's tokenizer.json; without it, give input_ids and labels");
    return encoder;
  }
  if (tokenizer->vocabulary() > vocabulary) {
    return FailedPrecondition(
        "the tokenizer has {} tokens and the model {} rows: they do not belong together",
        tokenizer->vocabulary(), vocabulary);
  }
  absl::StatusOr<ChatTemplate> chat = ChatTemplate::Create(choice, *tokenizer, special);
  if (chat.ok()) {
    encoder.chat_.emplace(*std::move(chat));
  } else {
    encoder.no_chat_ = chat.status();  // irrelevant if all samples come as ids
  }
  return encoder;
}

absl::StatusOr<EncodedSample> SampleEncoder::Encode(const JsonlSample& sample,
                                                    std::string_view where) const {
  EncodedSample out;
  if (sample.messages.empty()) {
    out.tokens = sample.input_ids;
    out.labels = ShiftLabels(sample.labels);
    out.targets = CountTargets(out.labels);
    return out;
  }
  if (!chat_.has_value()) {
    return Annotate(no_chat_, where);
  }
  absl::StatusOr<Conversation> conversation = chat_->Encode(sample.messages, sample.tools);
  if (!conversation.ok()) {
    const absl::Status& status = conversation.status();
    // Messages of a folder's own template begin with its file and line.
    return chat_->own() == nullptr
               ? Annotate(status, where)
               : absl::Status(status.code(), fmt::format("{} ({})", Message(status), where));
  }
  out.silent = conversation->silent;
  std::vector<int32_t> unshifted = conversation->tokens;
  for (size_t i = 0; i < unshifted.size(); ++i) {
    if (!conversation->is_target[i]) {
      unshifted[i] = formats::kIgnoredLabel;
    }
  }
  out.tokens = std::move(conversation->tokens);
  out.labels = ShiftLabels(unshifted);
  out.targets = CountTargets(out.labels);
  return out;
}

}  // namespace shoal::worker

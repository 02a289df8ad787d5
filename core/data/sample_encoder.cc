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

// Makes labels of what has a weight: `ids`, or -100, and what they weigh (no weights: 1 each), are
// not shifted. `of_sample` multiplies them.
absl::Status SetLabels(std::span<const int32_t> ids, std::span<const float> weights,
                       float of_sample, std::string_view where, EncodedSample& out) {
  out.labels = ShiftLabels(ids);
  out.weights.assign(ids.size(), 1.0f);
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    const float weight = of_sample * (weights.empty() ? 1.0f : weights[i + 1]);
    if (out.labels[i] == formats::kIgnoredLabel || weight == 0) {
      out.labels[i] = formats::kIgnoredLabel;
    } else if (!formats::IsWeight(weight)) {
      return InvalidArgument("{}: token {} weighs {} in all, not from {} to {}", where, i + 1,
                             weight, formats::kLeastWeight, formats::kMostWeight);
    } else {
      out.weights[i] = weight;
    }
  }
  if (std::ranges::all_of(out.weights, [](float weight) { return weight == 1.0f; })) {
    out.weights.clear();
  }
  out.targets = CountTargets(out.labels);
  return absl::OkStatus();
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
  if (!sample.weights.empty()) {
    sample.weights.resize(static_cast<size_t>(tokens));
    sample.weights.back() = 1;
  }
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
    SHOAL_RETURN_IF_ERROR(SetLabels(sample.labels, sample.weights, sample.weight, where, out));
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
  SHOAL_RETURN_IF_ERROR(
      SetLabels(conversation->tokens, conversation->weights, sample.weight, where, out));
  out.tokens = std::move(conversation->tokens);
  return out;
}

}  // namespace shoal::worker

#include "core/data/sample_encoder.h"

#include <algorithm>
#include <array>

#include "core/base/status.h"
#include "fmt/ranges.h"

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

// Without targets, if one has none or both are equal.
EncodedSample Joined(const EncodedSample& chosen, const EncodedSample& rejected) {
  EncodedSample pair = chosen;
  pair.chosen = {static_cast<uint32_t>(chosen.tokens.size()),
                 static_cast<uint32_t>(chosen.targets)};
  pair.tokens.insert(pair.tokens.end(), rejected.tokens.begin(), rejected.tokens.end());
  pair.labels.insert(pair.labels.end(), rejected.labels.begin(), rejected.labels.end());
  pair.silent += rejected.silent;
  const bool differ = chosen.tokens != rejected.tokens;
  const bool both = chosen.targets > 0 && rejected.targets > 0;
  pair.targets = differ && both ? chosen.targets + rejected.targets : 0;
  return pair;
}

// The tokens of a pair from `begin` to `end` as a sample.
EncodedSample PartOf(const EncodedSample& pair, size_t begin, size_t end) {
  const auto cut = [&](const std::vector<int32_t>& all) {
    return std::vector<int32_t>(all.begin() + static_cast<ptrdiff_t>(begin),
                                all.begin() + static_cast<ptrdiff_t>(end));
  };
  EncodedSample part;
  part.tokens = cut(pair.tokens);
  part.labels = cut(pair.labels);
  part.targets = CountTargets(part.labels);
  return part;
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
  if (sample.chosen.tokens > 0) {
    EncodedSample chosen = PartOf(sample, 0, sample.chosen.tokens);
    EncodedSample rejected = PartOf(sample, sample.chosen.tokens, sample.tokens.size());
    Truncate(chosen, tokens);
    Truncate(rejected, tokens);
    sample = Joined(chosen, rejected);
    return;
  }
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

EncodedSample SampleOfText(std::span<const int32_t> tokens, std::span<const float> weights) {
  EncodedSample sample;
  sample.tokens.assign(tokens.begin(), tokens.end());
  sample.labels = ShiftLabels(tokens);
  sample.targets = std::ssize(tokens) - 1;
  if (std::ranges::any_of(weights.subspan(1), [](float weight) { return weight != 1; })) {
    sample.weights.assign(weights.begin() + 1, weights.end());
    sample.weights.push_back(1);
  }
  return sample;
}

absl::StatusOr<SampleEncoder> SampleEncoder::Create(const Tokenizer* tokenizer,
                                                    const TemplateChoice& choice,
                                                    const formats::SpecialTokens& special,
                                                    int64_t vocabulary, const Learning& learning) {
  SampleEncoder encoder;
  encoder.tokenizer_ = tokenizer;
  encoder.kind_ = choice.kind;
  encoder.vocabulary_ = vocabulary;
  encoder.learning_ = learning;
  if (tokenizer == nullptr) {
    encoder.no_text_ = FailedPrecondition(
        "text needs the model's tokenizer.json; without it, give input_ids and labels");
    return encoder;
  }
  if (tokenizer->vocabulary() > vocabulary) {
    return FailedPrecondition(
        "the tokenizer has {} tokens and the model {} rows: they do not belong together",
        tokenizer->vocabulary(), vocabulary);
  }
  if (learning.objective == plan::Objective::kPretrain) {
    encoder.end_ = static_cast<int32_t>(special.eos);
    if (special.eos >= tokenizer->vocabulary() || !tokenizer->IdToToken(encoder.end_).has_value()) {
      encoder.no_text_ = FailedPrecondition(
          "a document ends with the end-of-sequence token, and the model's folder names none; set "
          "eos_token_id in config.json to a token of tokenizer.json");
    }
    return encoder;
  }
  TemplateChoice of = choice;
  of.answers = learning.train_on == plan::TrainOn::kAnswer;
  absl::StatusOr<ChatTemplate> chat = ChatTemplate::Create(of, *tokenizer, special);
  if (chat.ok()) {
    encoder.chat_.emplace(*std::move(chat));
  } else {
    encoder.no_text_ = chat.status();  // irrelevant if all samples come as ids
  }
  return encoder;
}

absl::StatusOr<EncodedSample> SampleEncoder::EncodeDocument(const JsonlSample& sample,
                                                            std::string_view where) const {
  EncodedSample out;
  if (sample.text.empty()) {
    return out;
  }
  const std::array<int32_t, 1> control = {end_};
  const auto tokens = tokenizer_->Encode(sample.text, {.add_special = true,  //
                                                       .parse_special = false,
                                                       .control = control});
  SHOAL_RETURN_IF_ERROR(Annotate(tokens.status(), where));
  out.tokens = *tokens;
  if (out.tokens.empty() || out.tokens.back() != end_) {
    out.tokens.push_back(end_);
  }
  SHOAL_RETURN_IF_ERROR(SetLabels(out.tokens, {}, sample.weight, where, out));
  return out;
}

absl::StatusOr<EncodedSample> SampleEncoder::EncodeChat(std::span<const ChatMessage> messages,
                                                        const JsonlSample& sample,
                                                        std::string_view where) const {
  absl::StatusOr<Conversation> conversation = chat_->Encode(messages, sample.tools);
  if (!conversation.ok()) {
    const absl::Status& status = conversation.status();
    // Messages of a folder's own template begin with its file and line.
    return chat_->own() == nullptr
               ? Annotate(status, where)
               : absl::Status(status.code(), fmt::format("{} ({})", Message(status), where));
  }
  EncodedSample out;
  out.silent = conversation->silent;
  out.rewritten = conversation->rewritten;
  SHOAL_RETURN_IF_ERROR(
      SetLabels(conversation->tokens, conversation->weights, sample.weight, where, out));
  out.tokens = std::move(conversation->tokens);
  return out;
}

absl::StatusOr<EncodedSample> SampleEncoder::EncodePair(const JsonlSample& sample,
                                                        std::string_view where) const {
  SHOAL_ASSIGN_OR_RETURN(EncodedSample chosen, EncodeChat(sample.messages, sample, where));
  SHOAL_ASSIGN_OR_RETURN(const EncodedSample rejected, EncodeChat(sample.rejected, sample, where));
  if (!chosen.weights.empty() || !rejected.weights.empty()) {
    return InvalidArgument(
        "{}: pairs have no weights but 0, of messages that are not learnt; leave them out", where);
  }
  if (chosen.targets > 0 && chosen.tokens == rejected.tokens) {
    return InvalidArgument(
        "{}: chosen and rejected are the same tokens, as the template writes them", where);
  }
  chosen.rewritten = false;  // earlier replies are of the prompt
  return Joined(chosen, rejected);
}

// Of the last message of the assistant, or of each, nothing before it is learnt.
absl::StatusOr<std::vector<EncodedSample>> SampleEncoder::EncodeReplies(
    const JsonlSample& sample, std::string_view where) const {
  const bool each = learning_.train_on == plan::TrainOn::kEach;
  std::vector<EncodedSample> encoded;
  std::vector<ChatMessage> messages = sample.messages;
  std::optional<size_t> last;
  int64_t tokens = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != Role::kAssistant) {
      continue;
    }
    if (last.has_value()) {
      messages[*last].weight = 0;
    }
    last = i;
    if (each && messages[i].weight > 0) {
      SHOAL_ASSIGN_OR_RETURN(encoded.emplace_back(),
                             EncodeChat(std::span(messages).first(i + 1), sample, where));
      tokens += std::ssize(encoded.back().tokens);
    }
    if (tokens > learning_.most_tokens) {
      return InvalidArgument(
          "{}: the samples that train_on: each makes of this conversation's replies have more than "
          "{} tokens in all; split the conversation, or say another train_on",
          where, learning_.most_tokens);
    }
  }
  if (encoded.empty()) {
    SHOAL_ASSIGN_OR_RETURN(encoded.emplace_back(), EncodeChat(messages, sample, where));
  }
  return encoded;
}

absl::StatusOr<std::vector<EncodedSample>> SampleEncoder::Encode(const JsonlSample& sample,
                                                                 std::string_view where) const {
  std::vector<EncodedSample> encoded;
  const bool documents = learning_.objective == plan::Objective::kPretrain;
  if (!documents && sample.messages.empty()) {
    EncodedSample& out = encoded.emplace_back();
    out.tokens = sample.input_ids;
    SHOAL_RETURN_IF_ERROR(SetLabels(sample.labels, sample.weights, sample.weight, where, out));
    return encoded;
  }
  SHOAL_RETURN_IF_ERROR(Annotate(no_text_, where));
  if (documents) {
    SHOAL_ASSIGN_OR_RETURN(encoded.emplace_back(), EncodeDocument(sample, where));
    return encoded;
  }
  if (learning_.objective == plan::Objective::kDpo) {
    SHOAL_ASSIGN_OR_RETURN(encoded.emplace_back(), EncodePair(sample, where));
    return encoded;
  }
  if (learning_.train_on == plan::TrainOn::kAll || learning_.train_on == plan::TrainOn::kAnswer) {
    SHOAL_ASSIGN_OR_RETURN(encoded.emplace_back(), EncodeChat(sample.messages, sample, where));
    return encoded;
  }
  return EncodeReplies(sample, where);
}

std::string SampleEncoder::Signature() const {
  if (learning_.objective == plan::Objective::kPretrain && tokenizer_ != nullptr) {
    return fmt::format("documents:{}:{}", fmt::join(tokenizer_->prefix(), ","), end_);
  }
  return chat_.has_value() ? chat_->Signature() : "";
}

}  // namespace shoal::worker

// Chat templates: turn a conversation into tokens, with a mask of what to learn. Either the one of
// the model's own folder (core/data/chat/own_template.h), or one of three of ours.
//
// The loss is on what the assistant says: the tokens of its content and the token that ends its
// turn. With ours, every turn is tokenised separately, so the mask is exact, and a prompt's tokens
// are the same in training and when generating. Text that people wrote is never read as special
// tokens: "<|im_end|>" within a message is ten characters of text.
//
//   plain    <bos>User: Hello!\nAssistant: Hi.<eos>\nUser: ...
//            For tokenizers without chat tokens. Roles are written out ("System", "User",
//            "Assistant"); each turn has its own line; a space stands between "Assistant:" and
//            its content, and <eos> ends only the assistant's turns. <bos> is omitted if the
//            model has none.
//   chatml   <|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHi.<|im_end|>\n
//            (Qwen) <bos> precedes it if the tokenizer's post-processor adds one. No system
//            message is made up.
//   llama3   <|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello!<|eot_id|>...
//            (Llama 3) Contents lose white space at both ends, as in Meta's template.
//
// Immutable; threads may share one. The tokenizer must outlive it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/chat/message.h"
#include "core/data/chat/own_template.h"
#include "core/data/chat/template_source.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/job/job.h"
#include "core/model/huggingface/hf_model.h"

namespace shoal::worker {

// Which template a model's conversations are written with: one of ours, or (kind: auto) one of a
// file, as its folder brings it.
struct TemplateChoice {
  TemplateChoice(plan::Template of) : kind(of) {}  // NOLINT(google-explicit-constructor)
  explicit TemplateChoice(TemplateSource of) : kind(plan::Template::kAuto), own(std::move(of)) {}

  plan::Template kind;
  TemplateSource own;
  // What that of a file reads beside the messages: true, false and numbers are such, all else is
  // text.
  std::map<std::string, std::string> arguments;
  std::string day;       // "2026-11-27", which strftime_now tells; empty: today
  bool answers = false;  // reasoning is not learnt
};

// What a job's data.template stands for. auto: the template of the model's folder, else ours whose
// tokens `tokenizer` (may be null) has, else plain.
absl::StatusOr<TemplateChoice> ChooseTemplate(const std::string& name,
                                              const std::string& model_folder,
                                              const Tokenizer* tokenizer);

class ChatTemplate {
 public:
  // FailedPrecondition names a special token that the template needs and the tokenizer lacks;
  // InvalidArgument what is wrong with a folder's own.
  // `special` is what formats::ReadSpecialTokens finds in the model's folder.
  static absl::StatusOr<ChatTemplate> Create(const TemplateChoice& choice,
                                             const Tokenizer& tokenizer,
                                             const formats::SpecialTokens& special);

  // `tools` is a list, or null; our templates have no place for them.
  absl::StatusOr<Conversation> Encode(std::span<const ChatMessage> messages,
                                      const nlohmann::ordered_json& tools = nullptr) const;

  // Returns the tokens up to the start of the assistant's content, from which to generate.
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(
      std::span<const ChatMessage> messages, const nlohmann::ordered_json& tools = nullptr) const;

  // The folder's own; null where it is one of ours.
  const OwnTemplate* own() const { return own_.get(); }

  // Returns the assistant's text: the decoded generated ids, without the end of turn.
  std::string DecodeReply(std::span<const int32_t> ids) const;

  // Two templates with equal signatures and days, over the same tokenizer, produce the same tokens.
  std::string Signature() const;
  // The day that it tells; empty where it tells none.
  const std::string& day() const { return day_; }

  // The token that ends generation.
  int32_t end_of_turn() const { return end_of_turn_; }

 private:
  ChatTemplate(plan::Template kind, const Tokenizer& tokenizer)
      : kind_(kind), tokenizer_(&tokenizer) {}
  absl::Status FindTokens(const formats::SpecialTokens& special);
  absl::Status AppendText(std::string_view text, float weight, bool continues,
                          Conversation& out) const;
  absl::Status AppendTurn(const ChatMessage& message, Conversation& out) const;
  absl::Status AppendHeader(Role role, Conversation& out) const;
  absl::Status AppendContent(const ChatMessage& message, Conversation& out) const;
  void AppendStart(Conversation& out) const;

  absl::Status CheckPlace(std::span<const ChatMessage> messages,
                          const nlohmann::ordered_json& tools) const;

  plan::Template kind_;
  std::shared_ptr<const OwnTemplate> own_;  // of auto
  const Tokenizer* tokenizer_;
  std::string day_;
  bool answers_ = false;
  int32_t end_of_turn_ = -1;
  std::vector<int32_t> start_;    // bos, if there is one
  std::vector<int32_t> control_;  // never read in messages, beside those listed as special
  int32_t header_begin_ = -1;     // <|im_start|>, <|start_header_id|>
  int32_t header_end_ = -1;       // <|end_header_id|>
};

}  // namespace shoal::worker

#include "core/data/chat_template.h"

#include <algorithm>
#include <array>

#include "absl/time/civil_time.h"
#include "absl/time/time.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/data/template_file.h"
#include "core/data/tokenizer/unicode.h"
#include "fmt/ranges.h"

namespace shoal::worker {
namespace {

constexpr std::array<std::string_view, 3> kPlainRoleNames = {"System", "User", "Assistant"};

std::string_view Trim(std::string_view text) {
  while (!text.empty() && IsWhitespace(FirstCharacter(text))) {
    text.remove_prefix(CharacterLength(text[0]));
  }
  while (!text.empty() && IsWhitespace(LastCharacter(text))) {
    text = text.substr(0, LastCharacterStart(text));
  }
  return text;
}

void AppendToken(int32_t id, float weight, Conversation& out) {
  out.tokens.push_back(id);
  out.weights.push_back(weight);
}

// A folder that does not say begin and end of sequence by text may by number.
TemplateSource WithTokens(TemplateSource source, const Tokenizer& tokenizer,
                          const formats::SpecialTokens& special) {
  for (const auto& [name, id] :
       {std::pair("bos_token", special.bos), std::pair("eos_token", special.eos)}) {
    const auto token = id < 0 || id >= tokenizer.vocabulary()
                           ? std::nullopt
                           : tokenizer.IdToToken(static_cast<int32_t>(id));
    if (token.has_value()) {
      source.tokens.emplace(name, *token);
    }
  }
  return source;
}

// At midnight, so that the same samples give the same tokens all day.
std::tm TimeOf(const absl::CivilDay& day) {
  std::tm time = {};
  time.tm_year = static_cast<int>(day.year()) - 1900;
  time.tm_mon = day.month() - 1;
  time.tm_mday = day.day();
  time.tm_wday = (static_cast<int>(absl::GetWeekday(day)) + 1) % 7;
  time.tm_yday = absl::GetYearDay(day) - 1;
  return time;
}

absl::StatusOr<absl::CivilDay> DayOf(const std::string& text) {
  absl::CivilDay day = absl::ToCivilDay(RealClock().Now(), absl::LocalTimeZone());
  return text.empty() || absl::ParseCivilTime(text, &day)
             ? absl::StatusOr<absl::CivilDay>(day)
             : InvalidArgument("'{}' is no day; write it as 2026-11-27", text);
}

absl::StatusOr<int32_t> RequireToken(const Tokenizer& tokenizer, std::string_view template_name,
                                     std::string_view token) {
  const std::optional<int32_t> id = tokenizer.TokenToId(token);
  if (!id.has_value()) {
    return FailedPrecondition(
        "template {} needs the token {}, which this tokenizer does not have; template: plain needs "
        "no chat tokens",
        template_name, token);
  }
  return *id;
}

}  // namespace

absl::StatusOr<TemplateChoice> ChooseTemplate(const std::string& name,
                                              const std::string& model_folder,
                                              const Tokenizer* tokenizer) {
  const std::optional<plan::Template> named = plan::TemplateNamed(name);
  if (named.has_value() && *named != plan::Template::kAuto) {
    return TemplateChoice(*named);
  }
  std::optional<TemplateSource> own;
  if (named.has_value()) {
    SHOAL_ASSIGN_OR_RETURN(own, TemplateIn(model_folder));
  } else {
    SHOAL_ASSIGN_OR_RETURN(own, TemplateOf(name, model_folder));
  }
  if (own.has_value()) {
    const auto ours = WrittenAs(own->text);
    return ours.has_value() ? TemplateChoice(*ours) : TemplateChoice(*std::move(own));
  }
  const auto has = [tokenizer](std::string_view token) {
    return tokenizer != nullptr && tokenizer->TokenToId(token).has_value();
  };
  return has("<|im_start|>")          ? plan::Template::kChatML
         : has("<|start_header_id|>") ? plan::Template::kLlama3
                                      : plan::Template::kPlain;
}

absl::StatusOr<ChatTemplate> ChatTemplate::Create(const TemplateChoice& choice,
                                                  const Tokenizer& tokenizer,
                                                  const formats::SpecialTokens& special) {
  ChatTemplate chat(choice.kind, tokenizer);
  chat.answers_ = choice.answers;
  if (choice.kind != plan::Template::kAuto) {
    if (!choice.arguments.empty()) {
      return InvalidArgument(
          "template {} has no variable '{}'; one of the model's own folder may have "
          "(chat_template.jinja, with template: auto)",
          plan::Name(choice.kind), choice.arguments.begin()->first);
    }
    SHOAL_RETURN_IF_ERROR(chat.FindTokens(special));
    chat.control_ = chat.start_;
    chat.control_.insert(chat.control_.end(),
                         {chat.header_begin_, chat.header_end_, chat.end_of_turn_});
    return chat;
  }
  SHOAL_CHECK(!choice.own.text.empty());
  SHOAL_ASSIGN_OR_RETURN(const absl::CivilDay day, DayOf(choice.day));
  SHOAL_ASSIGN_OR_RETURN(
      OwnTemplate own,
      OwnTemplate::Create(WithTokens(choice.own, tokenizer, special), choice.arguments, tokenizer,
                          special, {.day = TimeOf(day), .answers = choice.answers}));
  chat.day_ = own.tells_day() ? absl::FormatCivilTime(day) : "";
  chat.own_ = std::make_shared<const OwnTemplate>(std::move(own));
  chat.end_of_turn_ = chat.own_->end_of_turn();
  return chat;
}

absl::Status ChatTemplate::CheckPlace(std::span<const ChatMessage> messages,
                                      const nlohmann::ordered_json& tools) const {
  for (const ChatMessage& message : messages) {
    if (message.role == Role::kTool || message.more.contains("tool_calls") || !tools.is_null()) {
      return InvalidArgument(
          "template {} has no place for tools; one of the model's own folder may "
          "(chat_template.jinja, with template: auto)",
          plan::Name(kind_));
    }
  }
  return absl::OkStatus();
}

absl::Status ChatTemplate::FindTokens(const formats::SpecialTokens& special) {
  start_ = tokenizer_->prefix();
  switch (kind_) {
    case plan::Template::kPlain: {
      const auto is_token = [&](int64_t id) {
        return id < tokenizer_->vocabulary() &&
               tokenizer_->IdToToken(static_cast<int32_t>(id)).has_value();
      };
      if (!is_token(special.eos)) {
        return FailedPrecondition(
            "template plain ends a turn with the end-of-sequence token, and the model's folder "
            "names none; "
            "set eos_token_id in config.json to a token of tokenizer.json");
      }
      end_of_turn_ = static_cast<int32_t>(special.eos);
      if (start_.empty() && is_token(special.bos)) {
        start_.push_back(static_cast<int32_t>(special.bos));
      }
      return absl::OkStatus();
    }
    case plan::Template::kChatML: {
      SHOAL_ASSIGN_OR_RETURN(header_begin_, RequireToken(*tokenizer_, "chatml", "<|im_start|>"));
      SHOAL_ASSIGN_OR_RETURN(end_of_turn_, RequireToken(*tokenizer_, "chatml", "<|im_end|>"));
      return absl::OkStatus();
    }
    case plan::Template::kLlama3:
    case plan::Template::kAuto:
      break;
  }
  SHOAL_ASSIGN_OR_RETURN(const int32_t begin,
                         RequireToken(*tokenizer_, "llama3", "<|begin_of_text|>"));
  SHOAL_ASSIGN_OR_RETURN(header_begin_, RequireToken(*tokenizer_, "llama3", "<|start_header_id|>"));
  SHOAL_ASSIGN_OR_RETURN(header_end_, RequireToken(*tokenizer_, "llama3", "<|end_header_id|>"));
  SHOAL_ASSIGN_OR_RETURN(end_of_turn_, RequireToken(*tokenizer_, "llama3", "<|eot_id|>"));
  start_ = {begin};
  return absl::OkStatus();
}

absl::Status ChatTemplate::AppendText(std::string_view text, float weight, bool continues,
                                      Conversation& out) const {
  const EncodeOptions options = {
      .add_special = false, .parse_special = false, .continues = continues, .control = control_};
  SHOAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer_->Encode(text, options));
  size_t reasoning = 0;  // tokens of it
  if (const size_t bytes = BytesOfReasoning(text); answers_ && weight > 0 && bytes > 0) {
    SHOAL_ASSIGN_OR_RETURN(const auto before, tokenizer_->Encode(text.substr(0, bytes), options));
    reasoning = static_cast<size_t>(
        std::mismatch(ids.begin(), ids.end(), before.begin(), before.end()).first - ids.begin());
  }
  out.tokens.insert(out.tokens.end(), ids.begin(), ids.end());
  out.weights.resize(out.weights.size() + reasoning, 0);
  out.weights.resize(out.tokens.size(), weight);
  return absl::OkStatus();
}

void ChatTemplate::AppendStart(Conversation& out) const {
  for (const int32_t id : start_) {
    AppendToken(id, 0, out);
  }
}

// Appends what stands before an assistant's content.
absl::Status ChatTemplate::AppendHeader(Role role, Conversation& out) const {
  switch (kind_) {
    case plan::Template::kPlain: {
      const bool first = out.tokens.size() == start_.size();
      return AppendText(
          fmt::format("{}{}:", first ? "" : "\n", kPlainRoleNames[static_cast<size_t>(role)]), 0,
          !first, out);
    }
    case plan::Template::kChatML:
      AppendToken(header_begin_, 0, out);
      return AppendText(fmt::format("{}\n", Name(role)), 0, false, out);
    case plan::Template::kLlama3:
    case plan::Template::kAuto:
      break;
  }
  AppendToken(header_begin_, 0, out);
  SHOAL_RETURN_IF_ERROR(AppendText(Name(role), 0, false, out));
  AppendToken(header_end_, 0, out);
  return AppendText("\n\n", 0, false, out);
}

absl::Status ChatTemplate::AppendContent(const ChatMessage& message, Conversation& out) const {
  const bool replies = message.role == Role::kAssistant;
  const float weight = replies ? message.weight : 0;
  switch (kind_) {
    case plan::Template::kPlain:
      if (!message.content.empty()) {
        SHOAL_RETURN_IF_ERROR(AppendText(" " + message.content, weight, true, out));
      }
      if (replies) {
        AppendToken(end_of_turn_, weight, out);
      }
      return absl::OkStatus();
    case plan::Template::kChatML:
      SHOAL_RETURN_IF_ERROR(AppendText(message.content, weight, true, out));
      AppendToken(end_of_turn_, weight, out);
      return AppendText("\n", 0, false, out);
    case plan::Template::kLlama3:
    case plan::Template::kAuto:
      break;
  }
  SHOAL_RETURN_IF_ERROR(AppendText(Trim(message.content), weight, true, out));
  AppendToken(end_of_turn_, weight, out);
  return absl::OkStatus();
}

absl::Status ChatTemplate::AppendTurn(const ChatMessage& message, Conversation& out) const {
  SHOAL_RETURN_IF_ERROR(AppendHeader(message.role, out));
  return AppendContent(message, out);
}

absl::StatusOr<Conversation> ChatTemplate::Encode(std::span<const ChatMessage> messages,
                                                  const nlohmann::ordered_json& tools) const {
  if (own_ != nullptr) {
    return own_->Encode(messages, tools);
  }
  SHOAL_RETURN_IF_ERROR(CheckPlace(messages, tools));
  Conversation out;
  AppendStart(out);
  for (const ChatMessage& message : messages) {
    SHOAL_RETURN_IF_ERROR(AppendTurn(message, out));
  }
  return out;
}

absl::StatusOr<std::vector<int32_t>> ChatTemplate::EncodePrompt(
    std::span<const ChatMessage> messages, const nlohmann::ordered_json& tools) const {
  if (own_ != nullptr) {
    return own_->EncodePrompt(messages, tools);
  }
  SHOAL_ASSIGN_OR_RETURN(Conversation out, Encode(messages, tools));
  SHOAL_RETURN_IF_ERROR(AppendHeader(Role::kAssistant, out));
  return out.tokens;
}

std::string ChatTemplate::Signature() const {
  if (own_ != nullptr) {
    return own_->Signature();
  }
  return fmt::format("{}:{}:{}", static_cast<int>(kind_), fmt::join(start_, ","), end_of_turn_);
}

std::string ChatTemplate::DecodeReply(std::span<const int32_t> ids) const {
  if (own_ != nullptr) {
    return own_->DecodeReply(ids);
  }
  // Decodes it after its header, since decoders treat the first token of a text differently.
  Conversation header;
  if (!AppendHeader(Role::kAssistant, header).ok()) {
    return tokenizer_->Decode(ids);
  }
  const std::string before = tokenizer_->Decode(header.tokens);
  while (!ids.empty() && ids.back() == end_of_turn_) {
    ids = ids.first(ids.size() - 1);
  }
  header.tokens.insert(header.tokens.end(), ids.begin(), ids.end());
  std::string text = tokenizer_->Decode(header.tokens);
  size_t begin = text.starts_with(before) ? before.size() : 0;
  if (kind_ == plan::Template::kPlain && begin < text.size() && text[begin] == ' ') {
    ++begin;
  }
  return text.substr(begin);
}

}  // namespace shoal::worker

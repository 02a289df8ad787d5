#include "core/data/tokenizer/decoder.h"

#include <charconv>
#include <optional>

#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"
#include "core/data/tokenizer/steps.h"
#include "core/data/tokenizer/text_pattern.h"
#include "core/data/tokenizer/unicode.h"

namespace shoal::worker {
namespace {

constexpr size_t kMaxContentBytes = 64;  // of what Replace inserts for a match

void DecodeByteLevel(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const size_t before = bytes.size();
    for (size_t i = 0; i < token.size(); i += CharacterLength(token[i])) {
      const int byte = ByteOfCharacter(FirstCharacter(std::string_view(token).substr(i)));
      if (byte < 0) {  // not written in the byte alphabet: an added token, taken literally
        bytes.resize(before);
        bytes += token;
        break;
      }
      bytes += static_cast<char>(byte);
    }
  }
  tokens = {LossyUtf8(bytes)};
}

// "<0x0A>" -> 10.
std::optional<char> ByteToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) {
    return std::nullopt;
  }
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  return error == std::errc() && end == token.data() + 5 ? std::optional(static_cast<char>(value))
                                                         : std::nullopt;
}

void DecodeByteFallback(std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (FirstInvalidUtf8(bytes).has_value()) {
      out.insert(out.end(), bytes.size(), std::string(kReplacementCharacter));
    } else if (!bytes.empty()) {
      out.push_back(bytes);
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const std::optional<char> byte = ByteToken(token); byte.has_value()) {
      bytes += *byte;
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  tokens = std::move(out);
}

absl::Status ParseReplace(const JsonObject& object, std::vector<DecoderStep>& steps) {
  SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "pattern", "content"}));
  SHOAL_ASSIGN_OR_RETURN(const TextPattern pattern, TextPattern::Parse(object));
  SHOAL_ASSIGN_OR_RETURN(std::string content, object.String("content"));
  if (pattern.literal() == nullptr) {
    return InvalidArgument("{}: Replace of a regular expression is not supported in a decoder",
                           object.where());
  }
  if (content.size() > kMaxContentBytes) {
    return InvalidArgument("{}: content of {} bytes is more than {}", object.where(),
                           content.size(), kMaxContentBytes);
  }
  steps.emplace_back([literal = *pattern.literal(), content = std::move(content)](auto& tokens) {
    for (std::string& token : tokens) {
      absl::StrReplaceAll({{literal, content}}, &token);
    }
  });
  return absl::OkStatus();
}

absl::Status ParseStrip(const JsonObject& object, std::vector<DecoderStep>& steps) {
  SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "content", "start", "stop"}));
  SHOAL_ASSIGN_OR_RETURN(std::string content, object.String("content"));
  SHOAL_ASSIGN_OR_RETURN(const int64_t start, object.Integer("start", 0, INT32_MAX));
  SHOAL_ASSIGN_OR_RETURN(const int64_t stop, object.Integer("stop", 0, INT32_MAX));
  if (content.empty()) {
    return InvalidArgument("{}: content is empty", object.where());
  }
  steps.emplace_back([content = std::move(content), start, stop](auto& tokens) {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (int64_t i = 0; i < start && rest.starts_with(content); ++i) {
        rest.remove_prefix(content.size());
      }
      for (int64_t i = 0; i < stop && rest.ends_with(content); ++i) {
        rest.remove_suffix(content.size());
      }
      token = std::string(rest);
    }
  });
  return absl::OkStatus();
}

absl::Status ParseMetaspace(const JsonObject& object, std::vector<DecoderStep>& steps) {
  SHOAL_RETURN_IF_ERROR(object.AllowOnly(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}));
  SHOAL_ASSIGN_OR_RETURN(std::string replacement, object.StringOr("replacement", "\u2581"));
  SHOAL_ASSIGN_OR_RETURN(const std::string scheme, object.StringOr("prepend_scheme", "always"));
  SHOAL_ASSIGN_OR_RETURN(const bool prefix_space, object.BoolOr("add_prefix_space", true));
  if (replacement.empty()) {
    return InvalidArgument("{}: replacement is empty", object.where());
  }
  // The first token loses its replacement characters, since one was put before the text; elsewhere
  // they are spaces.
  const bool prepended = prefix_space && scheme != "never";
  steps.emplace_back([replacement = std::move(replacement), prepended](auto& tokens) {
    if (prepended && !tokens.empty()) {
      absl::StrReplaceAll({{replacement, ""}}, &tokens.front());
    }
    for (std::string& token : tokens) {
      absl::StrReplaceAll({{replacement, " "}}, &token);
    }
  });
  return absl::OkStatus();
}

absl::Status ParseStep(const JsonObject& object, const std::string& type,
                       std::vector<DecoderStep>& steps) {
  if (type == "Replace") {
    return ParseReplace(object, steps);
  }
  if (type == "Strip") {
    return ParseStrip(object, steps);
  }
  if (type == "Metaspace") {
    return ParseMetaspace(object, steps);
  }
  if (type == "ByteLevel") {
    steps.emplace_back(DecodeByteLevel);
    return object.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
  if (type == "ByteFallback") {
    steps.emplace_back(DecodeByteFallback);
    return object.AllowOnly({"type"});
  }
  if (type == "Fuse") {
    steps.emplace_back([](auto& tokens) { tokens = {absl::StrJoin(tokens, "")}; });
    return object.AllowOnly({"type"});
  }
  return InvalidArgument(
      "{}: type '{}' is not supported; shoal knows Sequence, ByteLevel, Replace, ByteFallback, "
      "Fuse, Strip and Metaspace",
      object.where(), type);
}

}  // namespace

absl::StatusOr<Decoder> Decoder::Parse(const Json& json, const std::string& where) {
  Decoder decoder;
  decoder.present_ = !json.is_null();
  SHOAL_RETURN_IF_ERROR(ParseSteps(json, where, "decoders", ParseStep, decoder.steps_));
  return decoder;
}

std::string Decoder::Apply(std::vector<std::string> tokens) const {
  for (const DecoderStep& step : steps_) {
    step(tokens);
  }
  std::string text;
  for (const std::string& token : tokens) {
    if (!present_ && !text.empty()) {
      text += ' ';
    }
    text += token;
  }
  return text;
}

}  // namespace shoal::worker

#include "core/data/tokenizer/decoder.h"

#include <charconv>
#include <optional>

#include "core/base/status.h"
#include "core/data/tokenizer/text_pattern.h"
#include "core/data/tokenizer/unicode.h"

namespace shoal::worker {
namespace {

constexpr int kDeepestDecoder = 8;       // of Sequence within Sequence
constexpr size_t kMaxContentBytes = 64;  // of what Replace puts in place of a match

class ByteLevelDecoder final : public DecoderStep {
 public:
  void Apply(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) {
      const size_t before = bytes.size();
      for (size_t i = 0; i < token.size(); i += CharacterLength(token[i])) {
        const int byte = ByteOfCharacter(FirstCharacter(std::string_view(token).substr(i)));
        if (byte < 0) {  // not written in the byte alphabet: an added token, taken as it is
          bytes.resize(before);
          bytes += token;
          break;
        }
        bytes += static_cast<char>(byte);
      }
    }
    tokens = {LossyUtf8(bytes)};
  }
};

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

class ByteFallback final : public DecoderStep {
 public:
  void Apply(std::vector<std::string>& tokens) const override {
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
};

class Fuse final : public DecoderStep {
 public:
  void Apply(std::vector<std::string>& tokens) const override {
    std::string joined;
    for (const std::string& token : tokens) {
      joined += token;
    }
    tokens = {std::move(joined)};
  }
};

class ReplaceText final : public DecoderStep {
 public:
  ReplaceText(std::string pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      size_t found = token.find(pattern_);
      if (found == std::string::npos) {
        continue;
      }
      std::string out;
      size_t from = 0;
      for (; found != std::string::npos; found = token.find(pattern_, from)) {
        out.append(token, from, found - from);
        out += content_;
        from = found + pattern_.size();
      }
      out.append(token, from, std::string::npos);
      token = std::move(out);
    }
  }

 private:
  std::string pattern_;
  std::string content_;
};

class Strip final : public DecoderStep {
 public:
  Strip(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void Apply(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view rest = token;
      for (int64_t i = 0; i < start_ && rest.starts_with(content_); ++i) {
        rest.remove_prefix(content_.size());
      }
      for (int64_t i = 0; i < stop_ && rest.ends_with(content_); ++i) {
        rest.remove_suffix(content_.size());
      }
      token = std::string(rest);
    }
  }

 private:
  std::string content_;
  int64_t start_;
  int64_t stop_;
};

// The first token loses its replacement characters, since one was put before the text; elsewhere
// they are spaces.
class DecodeMetaspace final : public DecoderStep {
 public:
  DecodeMetaspace(std::string replacement, bool prepended)
      : all_(replacement, " "), none_(std::move(replacement), ""), prepended_(prepended) {}
  void Apply(std::vector<std::string>& tokens) const override {
    if (prepended_ && !tokens.empty()) {
      std::vector<std::string> first = {std::move(tokens.front())};
      none_.Apply(first);
      tokens.front() = std::move(first.front());
    }
    all_.Apply(tokens);
  }

 private:
  ReplaceText all_;
  ReplaceText none_;
  bool prepended_;
};

using DecoderSteps = std::vector<std::unique_ptr<DecoderStep>>;

absl::Status ParseReplace(const JsonObject& object, DecoderSteps& steps) {
  SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "pattern", "content"}));
  SHOAL_ASSIGN_OR_RETURN(const Json* pattern_json, object.Require("pattern"));
  SHOAL_ASSIGN_OR_RETURN(const TextPattern pattern,
                         TextPattern::Parse(*pattern_json, object.where() + ": pattern"));
  SHOAL_ASSIGN_OR_RETURN(std::string content, object.String("content"));
  if (pattern.literal() == nullptr) {
    return InvalidArgument("{}: Replace of a regular expression is not supported in a decoder",
                           object.where());
  }
  if (content.size() > kMaxContentBytes) {
    return InvalidArgument("{}: content of {} bytes is more than {}", object.where(),
                           content.size(), kMaxContentBytes);
  }
  steps.push_back(std::make_unique<ReplaceText>(*pattern.literal(), std::move(content)));
  return absl::OkStatus();
}

absl::Status ParseStrip(const JsonObject& object, DecoderSteps& steps) {
  SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "content", "start", "stop"}));
  SHOAL_ASSIGN_OR_RETURN(std::string content, object.String("content"));
  SHOAL_ASSIGN_OR_RETURN(const int64_t start, object.Integer("start", 0, INT32_MAX));
  SHOAL_ASSIGN_OR_RETURN(const int64_t stop, object.Integer("stop", 0, INT32_MAX));
  if (content.empty()) {
    return InvalidArgument("{}: content is empty", object.where());
  }
  steps.push_back(std::make_unique<Strip>(std::move(content), start, stop));
  return absl::OkStatus();
}

absl::Status ParseDecodeMetaspace(const JsonObject& object, DecoderSteps& steps) {
  SHOAL_RETURN_IF_ERROR(object.AllowOnly(
      {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"}));
  SHOAL_ASSIGN_OR_RETURN(std::string replacement, object.StringOr("replacement", "\u2581"));
  SHOAL_ASSIGN_OR_RETURN(const std::string scheme, object.StringOr("prepend_scheme", "always"));
  SHOAL_ASSIGN_OR_RETURN(const bool prefix_space, object.BoolOr("add_prefix_space", true));
  if (replacement.empty()) {
    return InvalidArgument("{}: replacement is empty", object.where());
  }
  steps.push_back(
      std::make_unique<DecodeMetaspace>(std::move(replacement), prefix_space && scheme != "never"));
  return absl::OkStatus();
}

absl::Status ParseDecoder(const Json& json, const std::string& where, int depth,
                          DecoderSteps& steps) {
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(json, where));
  SHOAL_ASSIGN_OR_RETURN(const std::string type, object.String("type"));
  if (type == "Sequence") {
    SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "decoders"}));
    SHOAL_ASSIGN_OR_RETURN(const Json* parts, object.Array("decoders"));
    if (depth == kDeepestDecoder) {
      return InvalidArgument("{}: sequences are nested more than {} deep", where, kDeepestDecoder);
    }
    for (const Json& part : *parts) {
      SHOAL_RETURN_IF_ERROR(ParseDecoder(part, where, depth + 1, steps));
    }
    return absl::OkStatus();
  }
  if (type == "Replace") {
    return ParseReplace(object, steps);
  }
  if (type == "Strip") {
    return ParseStrip(object, steps);
  }
  if (type == "Metaspace") {
    return ParseDecodeMetaspace(object, steps);
  }
  if (type == "ByteLevel") {
    SHOAL_RETURN_IF_ERROR(
        object.AllowOnly({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
    steps.push_back(std::make_unique<ByteLevelDecoder>());
  } else if (type == "ByteFallback") {
    SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type"}));
    steps.push_back(std::make_unique<ByteFallback>());
  } else if (type == "Fuse") {
    SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type"}));
    steps.push_back(std::make_unique<Fuse>());
  } else {
    return InvalidArgument(
        "{}: type '{}' is not supported; shoal knows Sequence, ByteLevel, Replace, ByteFallback, "
        "Fuse, Strip and Metaspace",
        where, type);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Decoder> Decoder::Parse(const Json& json, const std::string& where) {
  Decoder decoder;
  if (!json.is_null()) {
    decoder.present_ = true;
    SHOAL_RETURN_IF_ERROR(ParseDecoder(json, where, 0, decoder.steps_));
  }
  return decoder;
}

std::string Decoder::Apply(std::vector<std::string> tokens) const {
  for (const auto& step : steps_) {
    step->Apply(tokens);
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

#include "core/data/tokenizer/normalizer.h"

#include <algorithm>
#include <optional>

#include "core/base/status.h"
#include "core/data/tokenizer/text_pattern.h"
#include "core/data/tokenizer/unicode.h"

namespace shoal::worker {
namespace {

constexpr int kDeepestNormalizer = 8;  // of Sequence within Sequence

class Prepend final : public NormalizerStep {
 public:
  explicit Prepend(std::string text) : text_(std::move(text)) {}
  absl::Status Apply(std::string& text, bool continues) const override {
    if (!text.empty() && !continues) {
      text.insert(0, text_);
    }
    return absl::OkStatus();
  }

 private:
  std::string text_;
};

class Replace final : public NormalizerStep {
 public:
  Replace(TextPattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  absl::Status Apply(std::string& text, bool) const override {
    return ReplaceAll(pattern_, content_, text);
  }

 private:
  TextPattern pattern_;
  std::string content_;
};

class Unicode final : public NormalizerStep {
 public:
  explicit Unicode(NormalForm form) : form_(form) {}
  absl::Status Apply(std::string& text, bool) const override {
    const bool ascii = std::all_of(text.begin(), text.end(),
                                   [](char c) { return static_cast<unsigned char>(c) < 0x80; });
    return ascii ? absl::OkStatus() : Normalize(form_, text);
  }

 private:
  NormalForm form_;
};

using NormalizerSteps = std::vector<std::unique_ptr<NormalizerStep>>;

absl::Status ParseNormalizer(const Json& json, const std::string& where, int depth,
                             NormalizerSteps& steps) {
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, JsonObject::From(json, where));
  SHOAL_ASSIGN_OR_RETURN(const std::string type, object.String("type"));
  if (type == "Sequence") {
    SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "normalizers"}));
    SHOAL_ASSIGN_OR_RETURN(const Json* parts, object.Array("normalizers"));
    if (depth == kDeepestNormalizer) {
      return InvalidArgument("{}: sequences are nested more than {} deep", where,
                             kDeepestNormalizer);
    }
    for (const Json& part : *parts) {
      SHOAL_RETURN_IF_ERROR(ParseNormalizer(part, where, depth + 1, steps));
    }
    return absl::OkStatus();
  }
  if (type == "Prepend") {
    SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "prepend"}));
    SHOAL_ASSIGN_OR_RETURN(std::string text, object.String("prepend"));
    steps.push_back(std::make_unique<Prepend>(std::move(text)));
    return absl::OkStatus();
  }
  if (type == "Replace") {
    SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "pattern", "content"}));
    SHOAL_ASSIGN_OR_RETURN(const Json* pattern_json, object.Require("pattern"));
    SHOAL_ASSIGN_OR_RETURN(TextPattern pattern,
                           TextPattern::Parse(*pattern_json, where + ": pattern"));
    SHOAL_ASSIGN_OR_RETURN(std::string content, object.String("content"));
    steps.push_back(std::make_unique<Replace>(std::move(pattern), std::move(content)));
    return absl::OkStatus();
  }
  const auto form = type == "NFC"    ? std::optional(NormalForm::kNfc)
                    : type == "NFD"  ? std::optional(NormalForm::kNfd)
                    : type == "NFKC" ? std::optional(NormalForm::kNfkc)
                    : type == "NFKD" ? std::optional(NormalForm::kNfkd)
                                     : std::nullopt;
  if (!form.has_value()) {
    return InvalidArgument(
        "{}: type '{}' is not supported; shoal knows Sequence, Prepend, Replace, NFC, NFD, NFKC "
        "and NFKD",
        where, type);
  }
  SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type"}));
  steps.push_back(std::make_unique<Unicode>(*form));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Parse(const Json& json, const std::string& where) {
  Normalizer normalizer;
  if (!json.is_null()) {
    SHOAL_RETURN_IF_ERROR(ParseNormalizer(json, where, 0, normalizer.steps_));
  }
  return normalizer;
}

absl::Status Normalizer::Apply(std::string& text, bool continues) const {
  for (const auto& step : steps_) {
    SHOAL_RETURN_IF_ERROR(step->Apply(text, continues));
    if (text.size() > kMaxTextBytes) {
      return ResourceExhausted("text grows beyond {} bytes when normalised", kMaxTextBytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker

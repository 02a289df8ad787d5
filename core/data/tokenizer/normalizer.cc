#include "core/data/tokenizer/normalizer.h"

#include <algorithm>
#include <optional>

#include "core/base/status.h"
#include "core/data/tokenizer/steps.h"
#include "core/data/tokenizer/text_pattern.h"
#include "core/data/tokenizer/unicode.h"

namespace shoal::worker {
namespace {

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

absl::Status ParseStep(const JsonObject& object, const std::string& type,
                       std::vector<NormalizerStep>& steps) {
  if (type == "Prepend") {
    SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "prepend"}));
    SHOAL_ASSIGN_OR_RETURN(std::string prefix, object.String("prepend"));
    steps.emplace_back([prefix = std::move(prefix)](std::string& text, bool continues) {
      if (!text.empty() && !continues) {
        text.insert(0, prefix);
      }
      return absl::OkStatus();
    });
    return absl::OkStatus();
  }
  if (type == "Replace") {
    SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type", "pattern", "content"}));
    SHOAL_ASSIGN_OR_RETURN(TextPattern pattern, TextPattern::Parse(object));
    SHOAL_ASSIGN_OR_RETURN(std::string content, object.String("content"));
    steps.emplace_back([pattern = std::move(pattern), content = std::move(content)](
                           std::string& text, bool) { return ReplaceAll(pattern, content, text); });
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
        object.where(), type);
  }
  SHOAL_RETURN_IF_ERROR(object.AllowOnly({"type"}));
  steps.emplace_back([form = *form](std::string& text, bool) {
    return IsAscii(text) ? absl::OkStatus() : Normalize(form, text);
  });
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Parse(const Json& json, const std::string& where) {
  Normalizer normalizer;
  SHOAL_RETURN_IF_ERROR(ParseSteps(json, where, "normalizers", ParseStep, normalizer.steps_));
  return normalizer;
}

absl::Status Normalizer::Apply(std::string& text, bool continues) const {
  for (const NormalizerStep& step : steps_) {
    SHOAL_RETURN_IF_ERROR(step(text, continues));
    if (text.size() > kMaxTextBytes) {
      return ResourceExhausted("text grows beyond {} bytes when normalised", kMaxTextBytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker

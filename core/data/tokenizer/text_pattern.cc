#include "core/data/tokenizer/text_pattern.h"

#include "core/base/status.h"
#include "core/data/tokenizer/normalizer.h"
#include "core/data/tokenizer/unicode.h"

namespace shoal::worker {

absl::StatusOr<TextPattern> TextPattern::Parse(const JsonObject& step) {
  SHOAL_ASSIGN_OR_RETURN(const JsonObject object, step.Object("pattern"));
  SHOAL_RETURN_IF_ERROR(object.AllowOnly({"String", "Regex"}));
  if (object.Find("Regex") != nullptr) {
    SHOAL_ASSIGN_OR_RETURN(const std::string pattern, object.String("Regex"));
    absl::StatusOr<Regex> regex = Regex::Compile(pattern);
    if (!regex.ok()) {
      return Annotate(regex.status(), object.where());
    }
    return TextPattern(*std::move(regex));
  }
  SHOAL_ASSIGN_OR_RETURN(std::string literal, object.String("String"));
  if (literal.empty()) {
    return InvalidArgument("{} is empty", object.where());
  }
  return TextPattern(std::move(literal));
}

absl::StatusOr<std::optional<TextRange>> TextPattern::Find(std::string_view text,
                                                           size_t from) const {
  if (regex_.has_value()) {
    return regex_->Find(text, from);
  }
  const size_t found = text.find(literal_, from);
  if (found == std::string_view::npos) {
    return std::nullopt;
  }
  return TextRange{found, found + literal_.size()};
}

absl::Status ReplaceAll(const TextPattern& pattern, std::string_view content, std::string& text) {
  std::string out;
  size_t copied = 0;
  size_t from = 0;
  while (from <= text.size()) {
    SHOAL_ASSIGN_OR_RETURN(const std::optional<TextRange> match, pattern.Find(text, from));
    if (!match.has_value()) {
      break;
    }
    out.append(text, copied, match->begin - copied);
    out += content;
    copied = match->end;
    from = match->end;
    if (match->begin == match->end) {  // an empty match: go on after the next character
      from += from < text.size() ? CharacterLength(text[from]) : 1;
    }
    if (out.size() > kMaxTextBytes) {
      return ResourceExhausted("text grows beyond {} bytes when normalised", kMaxTextBytes);
    }
  }
  if (from > 0) {
    out.append(text, copied, std::string::npos);
    text = std::move(out);
  }
  return absl::OkStatus();
}

}  // namespace shoal::worker

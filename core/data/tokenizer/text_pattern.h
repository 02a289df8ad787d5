// A "pattern" of tokenizer.json: {"String": "..."} matched literally, or {"Regex": "..."}.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/data/tokenizer/regex.h"
#include "core/data/tokenizer/tokenizer_fields.h"

namespace shoal::worker {

class TextPattern {
 public:
  static absl::StatusOr<TextPattern> Parse(const Json& json, const std::string& where);
  explicit TextPattern(Regex regex) : regex_(std::move(regex)) {}

  // Returns the first match at or after byte `from`.
  absl::StatusOr<std::optional<TextRange>> Find(std::string_view text, size_t from) const;
  // Returns the literal text, or null for a regular expression.
  const std::string* literal() const { return regex_.has_value() ? nullptr : &literal_; }

 private:
  explicit TextPattern(std::string literal) : literal_(std::move(literal)) {}
  std::string literal_;
  std::optional<Regex> regex_;
};

// Replaces every match by `content`, taken literally.
absl::Status ReplaceAll(const TextPattern& pattern, std::string_view content, std::string& text);

}  // namespace shoal::worker

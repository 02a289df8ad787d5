// A "pattern" of tokenizer.json: {"String": "..."} matched literally, or {"Regex": "..."}.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/base/json/json.h"
#include "core/data/tokenizer/regex.h"

namespace shoal::worker {

class TextPattern {
 public:
  // Reads the "pattern" of a step.
  static absl::StatusOr<TextPattern> Parse(const JsonObject& step);
  explicit TextPattern(Regex regex) : regex_(std::move(regex)) {}
  explicit TextPattern(std::string literal) : literal_(std::move(literal)) {}

  // Returns the first match at or after byte `from`.
  absl::StatusOr<std::optional<TextRange>> Find(std::string_view text, size_t from) const;
  // Returns the literal text, or null for a regular expression.
  const std::string* literal() const { return regex_.has_value() ? nullptr : &literal_; }

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

// Replaces every match by `content`, taken literally.
absl::Status ReplaceAll(const TextPattern& pattern, std::string_view content, std::string& text);

}  // namespace shoal::worker

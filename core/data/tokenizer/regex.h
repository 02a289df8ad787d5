// Regular expressions as tokenizer.json writes them (Oniguruma's dialect), run by PCRE2 with
// Unicode classes.
//
// The dialects differ in what \s, \w and \p{Script} mean; there the pattern is rewritten, and what
// cannot be rewritten (\W, \b) is refused by name. A Regex is immutable and may be used from many
// threads. Matching is bounded: a pattern that backtracks too much gives an error, never a hang.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/data/tokenizer/text_range.h"

namespace shoal::worker {

class Regex {
 public:
  static absl::StatusOr<Regex> Compile(std::string_view pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Returns the first match at or after byte `from` of valid UTF-8; nullopt if there is none.
  absl::StatusOr<std::optional<TextRange>> Find(std::string_view text, size_t from) const;

 private:
  struct State;
  explicit Regex(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace shoal::worker

// Text of tokens as they come, for `shoal generate`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/data/tokenizer/tokenizer.h"

namespace shoal::cli {

// Decoding a piece on its own would lose the space before its first word, so the whole is decoded
// each time and what is new is handed out, except for a character whose last bytes are still to
// come.
class TokenText {
 public:
  TokenText(const worker::Tokenizer& tokenizer, std::span<const int32_t> prompt);

  std::string Add(int32_t id);
  std::string Finish();

 private:
  std::string Rest(const std::string& text);

  const worker::Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
  size_t printed_;
};

// Ends a text before the first of some strings. What may be the beginning of one is held back until
// it is known.
class StopStrings {
 public:
  // Empty ones stop nothing.
  explicit StopStrings(std::vector<std::string> stops);

  // Returns what is certain to be part of the text.
  std::string Add(const std::string& piece);
  // Call when no more comes.
  std::string Finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace shoal::cli

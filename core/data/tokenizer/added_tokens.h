// Added tokens: strings that become one token wherever they occur in text, before any other step.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/data/tokenizer/text_range.h"

namespace shoal::worker {

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;  // ignored next to a word character
  bool lstrip = false;       // includes the white space before it
  bool rstrip = false;       // includes the white space after it
  bool normalized = false;   // matched in normalised text
  bool special = false;
};

// A stretch of text: an added token's, or (id -1) ordinary text.
struct Segment {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = -1;
};

// Finds added tokens in text: the leftmost first, and of those the longest. Immutable once filled.
class AddedTokenMatcher {
 public:
  // `pattern` is the text to find: the token's content, normalised if the token asks for it.
  // Ignores empty patterns.
  void Add(const AddedToken& token, std::string_view pattern);

  // Cuts `text` into segments that cover all of it except what lstrip and rstrip take twice. With
  // `parse_special` false, special tokens and those of `control` are read as ordinary text.
  std::vector<Segment> Split(std::string_view text, bool parse_special,
                             std::span<const int32_t> control) const;
  // Reads special tokens and those of `control` only where all of one lies within one of
  // `special_within`, which come in order and do not touch; of others those that are matched before
  // the normaliser.
  std::vector<Segment> Split(std::string_view text, std::span<const TextRange> special_within,
                             std::span<const int32_t> control) const;

 private:
  struct Match {
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  // Of tokens that `text` has at `begin`, of which `takes`(token, its end) holds.
  template <typename Takes>
  Match LongestAt(std::string_view text, size_t begin, Takes takes) const;
  // Appends the token that was found, and the text before it, of which `done` bytes are cut.
  static void Cut(std::string_view text, size_t begin, const Match& match, size_t& done,
                  std::vector<Segment>& segments);

  std::vector<AddedToken> tokens_;
  std::unordered_map<uint64_t, int32_t> children_;  // node * 256 + byte -> node
  std::vector<int32_t> token_at_{
      -1};  // by trie node: index into tokens_, or -1; node 0 is the root
  bool starts_[256] = {};
};

}  // namespace shoal::worker

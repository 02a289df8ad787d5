#include "core/data/tokenizer/added_tokens.h"

#include <algorithm>

#include "core/data/tokenizer/unicode.h"

namespace shoal::worker {
namespace {

constexpr uint64_t ChildKey(int32_t node, char byte) {
  return static_cast<uint64_t>(node) * 256 + static_cast<unsigned char>(byte);
}

bool IsSingleWord(std::string_view text, size_t begin, size_t end) {
  const bool word_before = begin > 0 && IsWordCharacter(LastCharacter(text.substr(0, begin)));
  const bool word_after = end < text.size() && IsWordCharacter(FirstCharacter(text.substr(end)));
  return !word_before && !word_after;
}

size_t SkipSpaceBack(std::string_view text, size_t begin) {
  while (begin > 0) {
    const std::string_view before = text.substr(0, begin);
    if (!IsWhitespace(LastCharacter(before))) {
      break;
    }
    begin = LastCharacterStart(before);
  }
  return begin;
}

size_t SkipSpace(std::string_view text, size_t end) {
  while (end < text.size() && IsWhitespace(FirstCharacter(text.substr(end)))) {
    end += CharacterLength(text[end]);
  }
  return end;
}

bool IsControl(const AddedToken& token, std::span<const int32_t> control) {
  return token.special || std::find(control.begin(), control.end(), token.id) != control.end();
}

}  // namespace

void AddedTokenMatcher::Add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) {
    return;
  }
  starts_[static_cast<unsigned char>(pattern[0])] = true;
  int32_t node = 0;
  for (const char byte : pattern) {
    const auto [child, is_new] =
        children_.emplace(ChildKey(node, byte), static_cast<int32_t>(token_at_.size()));
    if (is_new) {
      token_at_.push_back(-1);
    }
    node = child->second;
  }
  token_at_[static_cast<size_t>(node)] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

template <typename Takes>
AddedTokenMatcher::Match AddedTokenMatcher::LongestAt(std::string_view text, size_t begin,
                                                      Takes takes) const {
  Match match;
  int32_t node = 0;
  for (size_t i = begin; i < text.size(); ++i) {
    const auto child = children_.find(ChildKey(node, text[i]));
    if (child == children_.end()) {
      break;
    }
    node = child->second;
    if (const int32_t token = token_at_[static_cast<size_t>(node)];
        token >= 0 && takes(tokens_[static_cast<size_t>(token)], i + 1)) {
      match = {i + 1, &tokens_[static_cast<size_t>(token)]};
    }
  }
  return match;
}

void AddedTokenMatcher::Cut(std::string_view text, size_t begin, const Match& match, size_t& done,
                            std::vector<Segment>& segments) {
  const AddedToken& token = *match.token;
  size_t end = match.end;
  if (token.lstrip) {
    begin = std::max(SkipSpaceBack(text, begin), done);
  }
  if (token.rstrip) {
    end = SkipSpace(text, end);
  }
  if (done < begin) {
    segments.push_back({done, begin, -1});
  }
  segments.push_back({begin, end, token.id});
  done = std::max(done, end);
}

std::vector<Segment> AddedTokenMatcher::Split(std::string_view text, bool parse_special,
                                              std::span<const int32_t> control) const {
  const auto all = [](const AddedToken&, size_t) { return true; };
  std::vector<Segment> segments;
  size_t done = 0;
  size_t i = 0;
  while (i < text.size()) {
    const Match match =
        starts_[static_cast<unsigned char>(text[i])] ? LongestAt(text, i, all) : Match();
    if (match.token == nullptr) {
      ++i;
      continue;
    }
    const bool ignored = (IsControl(*match.token, control) && !parse_special) ||
                         (match.token->single_word && !IsSingleWord(text, i, match.end));
    if (!ignored) {
      Cut(text, i, match, done, segments);
    }
    i = match.end;
  }
  if (done < text.size()) {
    segments.push_back({done, text.size(), -1});
  }
  return segments;
}

std::vector<Segment> AddedTokenMatcher::Split(std::string_view text,
                                              std::span<const TextRange> special_within,
                                              std::span<const int32_t> control) const {
  std::vector<Segment> segments;
  size_t done = 0;
  size_t i = 0;
  auto range = special_within.begin();
  while (i < text.size()) {
    while (range != special_within.end() && range->end <= i) {
      ++range;
    }
    const size_t special_end = range != special_within.end() && range->begin <= i ? range->end : 0;
    const auto takes = [&](const AddedToken& token, size_t end) {
      return IsControl(token, control) ? end <= special_end : !token.normalized;
    };
    const Match match =
        starts_[static_cast<unsigned char>(text[i])] ? LongestAt(text, i, takes) : Match();
    if (match.token == nullptr || (match.token->single_word && !IsSingleWord(text, i, match.end))) {
      ++i;
      continue;
    }
    Cut(text, i, match, done, segments);
    i = match.end;
  }
  if (done < text.size()) {
    segments.push_back({done, text.size(), -1});
  }
  return segments;
}

}  // namespace shoal::worker

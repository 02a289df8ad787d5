#include "core/data/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "core/base/status.h"
#include "core/base/utf8.h"
#include "core/data/tokenizer/unicode.h"

namespace shoal::jinja {
namespace {

bool Strips(char32_t character, std::optional<std::string_view> characters) {
  if (!characters.has_value()) {
    return IsSpace(character);
  }
  std::string bytes;
  AppendUtf8(character, bytes);
  return characters->find(bytes) != std::string_view::npos;
}

// One that has a case.
bool IsLetter(char32_t character) {
  const auto code = static_cast<utf8proc_int32_t>(character);
  const utf8proc_category_t category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
         category == UTF8PROC_CATEGORY_LT || utf8proc_toupper(code) != code ||
         utf8proc_tolower(code) != code;
}

bool EndsWord(char32_t character) {
  return IsSpace(character) ||
         std::u32string_view(U"-({[<").find(character) != std::u32string_view::npos;
}

// Of what utf8proc leaves alone since it becomes several characters, all that is in Latin and Greek
// without accents of the ancients. An empty text: what utf8proc says.
struct Special {
  char32_t character;
  std::string_view upper;
  std::string_view title;
  std::string_view lower;
};
constexpr std::array<Special, 6> kSpecials = {
    {{U'\u00DF', "SS", "Ss", ""},
     {U'\u0130', "", "", "i\u0307"},
     {U'\u0149', "\u02BCN", "\u02BCN", ""},
     {U'\u01F0', "J\u030C", "J\u030C", ""},
     {U'\u0390', "\u0399\u0308\u0301", "\u0399\u0308\u0301", ""},
     {U'\u03B0', "\u03A5\u0308\u0301", "\u03A5\u0308\u0301", ""}}};

constexpr char32_t kSigma = U'\u03A3';
constexpr char32_t kFinalSigma = U'\u03C2';

// Unicode's Case_Ignorable: no letter that begins or ends a word.
bool IsIgnored(char32_t character) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return std::u32string_view(U"'.:\u00B7\u2018\u2019\u2024\u2027").find(character) !=
             std::u32string_view::npos;
  }
}

// Whether a sigma at `at` ends a word: a letter is before it and none behind.
bool EndsWithSigma(std::string_view text, size_t at) {
  size_t before = at;
  while (before > 0 && IsIgnored(LastCharacter(text.substr(0, before)))) {
    before = LastCharacterStart(text.substr(0, before));
  }
  size_t behind = at + CharacterLength(text[at]);
  while (behind < text.size() && IsIgnored(FirstCharacter(text.substr(behind)))) {
    behind += CharacterLength(text[behind]);
  }
  return before > 0 && IsLetter(LastCharacter(text.substr(0, before))) &&
         (behind == text.size() || !IsLetter(FirstCharacter(text.substr(behind))));
}

// `to` is kUpper, kLower or kTitle.
std::string Mapped(std::string_view text, size_t at, Case to) {
  const char32_t character = FirstCharacter(text.substr(at));
  for (const Special& special : kSpecials) {
    const std::string_view becomes = to == Case::kUpper   ? special.upper
                                     : to == Case::kTitle ? special.title
                                                          : special.lower;
    if (special.character == character && !becomes.empty()) {
      return std::string(becomes);
    }
  }
  const auto code = static_cast<utf8proc_int32_t>(character);
  utf8proc_int32_t mapped = to == Case::kUpper   ? utf8proc_toupper(code)
                            : to == Case::kTitle ? utf8proc_totitle(code)
                                                 : utf8proc_tolower(code);
  if (to == Case::kLower && character == kSigma && EndsWithSigma(text, at)) {
    mapped = static_cast<utf8proc_int32_t>(kFinalSigma);
  }
  std::string out;
  AppendUtf8(static_cast<char32_t>(mapped), out);
  return out;
}

}  // namespace

bool IsSpace(char32_t character) {
  return worker::IsWhitespace(character) || (character >= 0x1C && character <= 0x1F);
}

bool IsPrintable(char32_t character) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(character))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return character == U' ';
    default:
      return true;
  }
}

int64_t CountCharacters(std::string_view text) {
  int64_t count = 0;
  for (const char byte : text) {
    count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80 ? 1 : 0;
  }
  return count;
}

size_t Advance(std::string_view text, size_t at, int64_t characters) {
  for (; characters > 0 && at < text.size(); --characters) {
    at += CharacterLength(text[at]);
  }
  for (; characters < 0 && at > 0; ++characters) {
    at = LastCharacterStart(text.substr(0, at));
  }
  return at;
}

std::string OneLine(std::string_view text, size_t max_bytes) {
  size_t end = std::min(text.size(), max_bytes);
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;
  }
  std::string line(text.substr(0, end));
  std::replace_if(
      line.begin(), line.end(), [](char c) { return c >= 0 && c < ' '; }, ' ');
  return line;
}

absl::StatusOr<Text> Strip(const Text& text, Side side, std::optional<std::string_view> characters,
                           Budget& budget) {
  const std::string_view all = text.str();
  const size_t cost = 1 + characters.value_or("").size() / 64;  // of a character
  size_t begin = 0;
  size_t end = all.size();
  while (side != Side::kRight && begin < end) {
    SHOAL_RETURN_IF_ERROR(budget.Spend(cost));
    if (!Strips(FirstCharacter(all.substr(begin)), characters)) {
      break;
    }
    begin += CharacterLength(all[begin]);
  }
  while (side != Side::kLeft && begin < end) {
    SHOAL_RETURN_IF_ERROR(budget.Spend(cost));
    const std::string_view rest = all.substr(begin, end - begin);
    if (!Strips(LastCharacter(rest), characters)) {
      break;
    }
    end = begin + LastCharacterStart(rest);
  }
  SHOAL_RETURN_IF_ERROR(budget.Make(kPartBytes + text.memory()));
  return text.Part(begin, end);
}

// glibc's memmem holds to that for parts of more than 256 bytes, and looks at no byte more often
// than a shorter part is long.
size_t FindIn(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) {
    return std::string_view::npos;
  }
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t CountIn(std::string_view text, std::string_view part, int64_t limit) {
  size_t count = 0;
  for (size_t at = 0; limit < 0 || count < static_cast<size_t>(limit); ++count) {
    at = FindIn(text, part, at);
    if (at == std::string_view::npos) {
      break;
    }
    at += part.size();
  }
  return count;
}

absl::StatusOr<std::vector<Text>> Split(const Text& text, std::optional<std::string_view> separator,
                                        int64_t limit, Budget& budget) {
  const std::string_view all = text.str();
  std::vector<Text> parts;
  size_t begin = 0;
  if (separator.has_value()) {
    SHOAL_RETURN_IF_ERROR(budget.Read(all.size() + separator->size()));
    const size_t count = CountIn(all, *separator, limit);
    SHOAL_RETURN_IF_ERROR(budget.Make(text.memory() + (count + 1) * kPartBytes));
    for (size_t i = 0; i < count; ++i) {
      const size_t at = FindIn(all, *separator, begin);
      parts.push_back(text.Part(begin, at));
      begin = at + separator->size();
    }
    parts.push_back(text.Part(begin, all.size()));
    return parts;
  }
  SHOAL_RETURN_IF_ERROR(budget.Walk(all.size()));
  SHOAL_RETURN_IF_ERROR(budget.Make(text.memory()));
  const auto skip = [&](size_t at, bool space) {
    while (at < all.size() && IsSpace(FirstCharacter(all.substr(at))) == space) {
      at += CharacterLength(all[at]);
    }
    return at;
  };
  for (begin = skip(0, true); begin < all.size();) {
    const bool last = limit >= 0 && std::ssize(parts) == limit;
    const size_t end = last ? all.size() : skip(begin, false);
    SHOAL_RETURN_IF_ERROR(budget.Make(kPartBytes));
    parts.push_back(text.Part(begin, end));
    begin = skip(end, true);
  }
  return parts;
}

absl::StatusOr<std::vector<Text>> SplitFromRight(const Text& text, std::string_view separator,
                                                 int64_t limit, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(budget.Make(text.size() + separator.size()));
  const std::string all(text.str().rbegin(), text.str().rend());
  const std::string reversed(separator.rbegin(), separator.rend());
  const size_t count = CountIn(all, reversed, limit);
  SHOAL_RETURN_IF_ERROR(budget.Make(text.memory() + (count + 1) * kPartBytes));
  std::vector<Text> parts;
  size_t begin = 0;  // from the right
  for (size_t i = 0; i < count; ++i) {
    const size_t at = FindIn(all, reversed, begin);
    parts.push_back(text.Part(all.size() - at, all.size() - begin));
    begin = at + separator.size();
  }
  parts.push_back(text.Part(0, all.size() - begin));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

absl::StatusOr<Text> Replace(const Text& text, std::string_view from, const Text& to, int64_t limit,
                             Budget& budget) {
  const std::string_view all = text.str();
  SHOAL_RETURN_IF_ERROR(budget.Read(all.size() + from.size()));
  // An empty text stands before each character, and at the end.
  size_t count =
      from.empty() ? static_cast<size_t>(CountCharacters(all)) + 1 : CountIn(all, from, limit);
  count = limit < 0 ? count : std::min(count, static_cast<size_t>(limit));
  SHOAL_RETURN_IF_ERROR(budget.Make(kPartBytes + text.memory()));
  // A place cuts a run of the text in two.
  SHOAL_RETURN_IF_ERROR(budget.Make(to.memory() + sizeof(Text::Run), count));
  Text replaced;
  size_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t at = from.empty() ? Advance(all, begin, i == 0 ? 0 : 1) : FindIn(all, from, begin);
    replaced.AppendPart(text, begin, at);
    replaced.Append(to);
    begin = at + from.size();
  }
  replaced.AppendPart(text, begin, all.size());
  return replaced;
}

absl::StatusOr<Text> ChangeCase(const Text& text, Case to, Budget& budget) {
  SHOAL_RETURN_IF_ERROR(budget.Walk(text.size()));
  SHOAL_RETURN_IF_ERROR(budget.Make(kPartBytes + 3 * text.memory()));  // a letter may grow
  Text changed;
  const std::string_view all = text.str();
  bool within = false;  // a word, or behind the first character
  for (size_t at = 0; at < all.size(); at += CharacterLength(all[at])) {
    const char32_t character = FirstCharacter(all.substr(at));
    const bool large = to == Case::kUpper || (to != Case::kLower && !within);
    const Case as = !large                                     ? Case::kLower
                    : to == Case::kUpper || to == Case::kWords ? Case::kUpper
                                                               : Case::kTitle;
    changed.Append(Mapped(all, at, as), text.OriginAt(at));
    const bool word = to == Case::kTitle ? IsLetter(character) : !EndsWord(character);
    within = to == Case::kCapitalize || word;
  }
  return changed;
}

}  // namespace shoal::jinja

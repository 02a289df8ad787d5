#include "core/data/jinja/characters.h"

#include <utf8proc.h>

#include <string>

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

bool IsLetter(char32_t character) {
  const auto code = static_cast<utf8proc_int32_t>(character);
  return utf8proc_toupper(code) != code || utf8proc_tolower(code) != code;
}

// What utf8proc maps to several characters it leaves alone.
void AppendUpper(char32_t character, std::string& out) {
  if (character == U'\u00DF') {
    out += "SS";
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(character))),
               out);
  }
}

}  // namespace

bool IsSpace(char32_t character) {
  return worker::IsWhitespace(character) || (character >= 0x1C && character <= 0x1F);
}

int64_t CountCharacters(std::string_view text) {
  int64_t count = 0;
  for (const char byte : text) {
    count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80 ? 1 : 0;
  }
  return count;
}

std::vector<size_t> CharacterStarts(std::string_view text) {
  std::vector<size_t> starts;
  starts.reserve(text.size() + 1);
  for (size_t at = 0; at < text.size(); at += CharacterLength(text[at])) {
    starts.push_back(at);
  }
  starts.push_back(text.size());
  return starts;
}

Text Strip(const Text& text, Side side, std::optional<std::string_view> characters) {
  const std::string_view all = text.str();
  size_t begin = 0;
  size_t end = all.size();
  while (side != Side::kRight && begin < end &&
         Strips(FirstCharacter(all.substr(begin)), characters)) {
    begin += CharacterLength(all[begin]);
  }
  while (side != Side::kLeft && begin < end &&
         Strips(LastCharacter(all.substr(begin, end - begin)), characters)) {
    end = begin + LastCharacterStart(all.substr(begin, end - begin));
  }
  return text.Part(begin, end);
}

std::vector<Text> Split(const Text& text, std::optional<std::string_view> separator,
                        int64_t limit) {
  const std::string_view all = text.str();
  std::vector<Text> parts;
  size_t begin = 0;
  if (separator.has_value()) {
    for (size_t at = all.find(*separator);
         at != std::string_view::npos && (limit < 0 || std::ssize(parts) < limit);
         at = all.find(*separator, begin)) {
      parts.push_back(text.Part(begin, at));
      begin = at + separator->size();
    }
    parts.push_back(text.Part(begin, all.size()));
    return parts;
  }
  const auto skip = [&](size_t at, bool space) {
    while (at < all.size() && IsSpace(FirstCharacter(all.substr(at))) == space) {
      at += CharacterLength(all[at]);
    }
    return at;
  };
  for (begin = skip(0, true); begin < all.size();) {
    const bool last = limit >= 0 && std::ssize(parts) == limit;
    const size_t end = last ? all.size() : skip(begin, false);
    parts.push_back(text.Part(begin, end));
    begin = skip(end, true);
  }
  return parts;
}

std::vector<Text> SplitFromRight(const Text& text, std::string_view separator, int64_t limit) {
  const std::string_view all = text.str();
  std::vector<Text> parts;
  size_t end = all.size();
  while (limit < 0 || std::ssize(parts) < limit) {
    const size_t at = end < separator.size() ? std::string_view::npos
                                             : all.rfind(separator, end - separator.size());
    if (at == std::string_view::npos) {
      break;
    }
    parts.insert(parts.begin(), text.Part(at + separator.size(), end));
    end = at;
  }
  parts.insert(parts.begin(), text.Part(0, end));
  return parts;
}

Text Replace(const Text& text, std::string_view from, const Text& to, int64_t limit) {
  Text replaced;
  const std::string_view all = text.str();
  size_t begin = 0;
  int64_t count = 0;
  while (limit < 0 || count < limit) {
    // An empty text stands before each character, and at the end.
    size_t at = all.find(from, begin);
    if (from.empty() && count > 0) {
      at = begin < all.size() ? begin + CharacterLength(all[begin]) : std::string_view::npos;
    }
    if (at == std::string_view::npos) {
      break;
    }
    replaced.AppendPart(text, begin, at);
    replaced.Append(to);
    begin = at + from.size();
    ++count;
  }
  replaced.AppendPart(text, begin, all.size());
  return replaced;
}

Text ChangeCase(const Text& text, Case to) {
  Text changed;
  const std::string_view all = text.str();
  bool within = false;  // a word, or behind the first character
  for (size_t at = 0; at < all.size(); at += CharacterLength(all[at])) {
    const char32_t character = FirstCharacter(all.substr(at));
    const bool upper = to == Case::kUpper || (to != Case::kLower && !within);
    std::string mapped;
    if (upper) {
      AppendUpper(character, mapped);
    } else {
      AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character))),
                 mapped);
    }
    changed.Append(mapped, text.OriginAt(at));
    within = to == Case::kCapitalize || IsLetter(character);
  }
  return changed;
}

}  // namespace shoal::jinja

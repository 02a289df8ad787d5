#include "core/base/utf8.h"

namespace shoal {
namespace {

// Returns the length of the well-formed character at the front, or 0; `valid_part` is how many
// bytes began one.
size_t WellFormedLength(std::string_view text, size_t* valid_part) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  *valid_part = 1;
  const unsigned char lead = at(0);
  if (lead < 0x80) {
    return 1;
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return 0;
  }
  const size_t length = CharacterLength(text[0]);
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (lead == 0xE0) {
    low = 0xA0;
  } else if (lead == 0xED) {
    high = 0x9F;
  } else if (lead == 0xF0) {
    low = 0x90;
  } else if (lead == 0xF4) {
    high = 0x8F;
  }
  for (size_t i = 1; i < length; ++i) {
    if (i >= text.size() || at(i) < low || at(i) > high) {
      return 0;
    }
    *valid_part = i + 1;
    low = 0x80;
    high = 0xBF;
  }
  return length;
}

}  // namespace

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    if (static_cast<unsigned char>(text[i]) < 0x80) {
      ++i;
      continue;
    }
    size_t valid_part = 0;
    const size_t length = WellFormedLength(text.substr(i), &valid_part);
    if (length == 0) {
      return i;
    }
    i += length;
  }
  return std::nullopt;
}

char32_t FirstCharacter(std::string_view text) {
  const auto byte = [&](size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(text[i]));
  };
  switch (CharacterLength(text[0])) {
    case 1:
      return byte(0);
    case 2:
      return ((byte(0) & 0x1F) << 6) | (byte(1) & 0x3F);
    case 3:
      return ((byte(0) & 0x0F) << 12) | ((byte(1) & 0x3F) << 6) | (byte(2) & 0x3F);
    default:
      return ((byte(0) & 0x07) << 18) | ((byte(1) & 0x3F) << 12) | ((byte(2) & 0x3F) << 6) |
             (byte(3) & 0x3F);
  }
}

size_t LastCharacterStart(std::string_view text) {
  size_t i = text.size() - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) {
    --i;
  }
  return i;
}

char32_t LastCharacter(std::string_view text) {
  return FirstCharacter(text.substr(LastCharacterStart(text)));
}

void AppendUtf8(char32_t character, std::string& out) {
  const auto push = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (character < 0x80) {
    push(character);
  } else if (character < 0x800) {
    push(0xC0 | (character >> 6));
    push(0x80 | (character & 0x3F));
  } else if (character < 0x10000) {
    push(0xE0 | (character >> 12));
    push(0x80 | ((character >> 6) & 0x3F));
    push(0x80 | (character & 0x3F));
  } else {
    push(0xF0 | (character >> 18));
    push(0x80 | ((character >> 12) & 0x3F));
    push(0x80 | ((character >> 6) & 0x3F));
    push(0x80 | (character & 0x3F));
  }
}

std::string LossyUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  size_t i = 0;
  while (i < bytes.size()) {
    size_t valid_part = 0;
    const size_t length = WellFormedLength(bytes.substr(i), &valid_part);
    if (length == 0) {
      out += kReplacementCharacter;
      i += valid_part;
    } else {
      out += bytes.substr(i, length);
      i += length;
    }
  }
  return out;
}

}  // namespace shoal

#include "core/base/utf8.h"

#include <utf8proc.h>

namespace shoal {
namespace {

// Reads the character at the front of non-empty text. Returns its length, or 0 if it is malformed.
size_t Read(std::string_view text, utf8proc_int32_t* character) {
  const utf8proc_ssize_t length =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), character);
  return length < 0 ? 0 : static_cast<size_t>(length);
}

// Returns how many bytes at the front of malformed text begin a character (at least 1): the most
// that lowest or highest continuation bytes complete.
size_t MaximalPart(std::string_view text) {
  for (const size_t part : {size_t{3}, size_t{2}}) {
    for (const char filler : {'\x80', '\xBF'}) {
      utf8proc_int32_t character = 0;
      if (part <= text.size() &&
          Read(std::string(text.substr(0, part)).append(4 - part, filler), &character) > 0) {
        return part;
      }
    }
  }
  return 1;
}

}  // namespace

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    utf8proc_int32_t character = 0;
    const size_t length =
        static_cast<unsigned char>(text[i]) < 0x80 ? 1 : Read(text.substr(i), &character);
    if (length == 0) {
      return i;
    }
    i += length;
  }
  return std::nullopt;
}

char32_t FirstCharacter(std::string_view text) {
  utf8proc_int32_t character = 0;
  Read(text, &character);
  return static_cast<char32_t>(character);
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
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t length =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
}

std::string LossyUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (true) {
    const size_t valid = FirstInvalidUtf8(bytes).value_or(bytes.size());
    out += bytes.substr(0, valid);
    bytes.remove_prefix(valid);
    if (bytes.empty()) {
      return out;
    }
    out += kReplacementCharacter;
    bytes.remove_prefix(MaximalPart(bytes));
  }
}

}  // namespace shoal

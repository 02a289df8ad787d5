#include "worker/data/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "common/status.h"

namespace shoal::worker {
namespace {

// Length of the well-formed character at the front, or 0; `valid_part` is how many bytes began one.
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
  // The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF.
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

bool InRange(char32_t character, char32_t low, char32_t high) {
  return character >= low && character <= high;
}

struct Free {
  void operator()(utf8proc_uint8_t* memory) const { std::free(memory); }
};

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

bool IsWhitespace(char32_t c) {
  return InRange(c, 0x09, 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         InRange(c, 0x2000, 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsWordCharacter(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      // Joiners, and the circled and squared letters, which are Alphabetic though their category is
      // symbol.
      return c == 0x200C || c == 0x200D || InRange(c, 0x24B6, 0x24E9) ||
             InRange(c, 0x1F130, 0x1F149) || InRange(c, 0x1F150, 0x1F169) ||
             InRange(c, 0x1F170, 0x1F189);
  }
}

absl::Status Normalize(NormalForm form, std::string& text) {
  int options = UTF8PROC_STABLE;
  switch (form) {
    case NormalForm::kNfc:
      options |= UTF8PROC_COMPOSE;
      break;
    case NormalForm::kNfd:
      options |= UTF8PROC_DECOMPOSE;
      break;
    case NormalForm::kNfkc:
      options |= UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
      break;
    case NormalForm::kNfkd:
      options |= UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
      break;
  }
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t length = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &mapped, static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(mapped);
  if (length < 0) {
    return InvalidArgument("cannot normalise text: {}", utf8proc_errmsg(length));
  }
  text.assign(reinterpret_cast<const char*>(mapped), static_cast<size_t>(length));
  return absl::OkStatus();
}

const std::array<char32_t, 256>& ByteCharacters() {
  static const std::array<char32_t, 256> characters = [] {
    std::array<char32_t, 256> table{};
    char32_t next = 256;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable =
          InRange(byte, '!', '~') || InRange(byte, 0xA1, 0xAC) || InRange(byte, 0xAE, 0xFF);
      table[byte] = printable ? byte : next++;
    }
    return table;
  }();
  return characters;
}

int ByteOfCharacter(char32_t character) {
  constexpr size_t kCharacters = 0x144;  // the table's largest character is U+0143
  static const std::array<int16_t, kCharacters> bytes = [] {
    std::array<int16_t, kCharacters> table{};
    table.fill(-1);
    for (size_t byte = 0; byte < 256; ++byte) {
      table[ByteCharacters()[byte]] = static_cast<int16_t>(byte);
    }
    return table;
  }();
  return character < kCharacters ? bytes[character] : -1;
}

}  // namespace shoal::worker

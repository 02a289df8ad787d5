#include "core/data/tokenizer/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "core/base/status.h"

namespace shoal::worker {
namespace {

bool InRange(char32_t character, char32_t low, char32_t high) {
  return character >= low && character <= high;
}

struct Free {
  void operator()(utf8proc_uint8_t* memory) const { std::free(memory); }
};

}  // namespace

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

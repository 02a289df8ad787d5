// UTF-8: whether bytes are, and characters in and out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace shoal {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Offset of the first byte that is not part of well-formed UTF-8 (no overlong forms, no
// surrogates), or nullopt.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

// Bytes of the character that starts with `lead`. Only for text known to be valid.
constexpr size_t CharacterLength(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The character at the front of non-empty valid text, and the one that ends it.
char32_t FirstCharacter(std::string_view text);
char32_t LastCharacter(std::string_view text);
// Where the last character of non-empty valid text begins.
size_t LastCharacterStart(std::string_view text);

void AppendUtf8(char32_t character, std::string& out);

// Invalid sequences become U+FFFD, one per maximal part of a character (as the WHATWG and Rust do).
std::string LossyUtf8(std::string_view bytes);

}  // namespace shoal

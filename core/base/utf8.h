// UTF-8: validation, and reading and writing characters.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace shoal {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Returns the offset of the first byte that is not part of well-formed UTF-8 (no overlong forms, no
// surrogates), or nullopt.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

// Returns the number of bytes of the character that starts with `lead`. Only for text known to be
// valid.
constexpr size_t CharacterLength(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Return the first and the last character of non-empty valid text.
char32_t FirstCharacter(std::string_view text);
char32_t LastCharacter(std::string_view text);
// Returns where the last character of non-empty valid text begins.
size_t LastCharacterStart(std::string_view text);

void AppendUtf8(char32_t character, std::string& out);

// Replaces invalid sequences by U+FFFD, one per maximal part of a character (as WHATWG and Rust
// do).
std::string LossyUtf8(std::string_view bytes);

}  // namespace shoal

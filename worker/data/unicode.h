// The little Unicode that tokenizers need beyond regular expressions: UTF-8 in and out, white space
// and word characters, normal forms, and the printable stand-ins that byte-level tokenizers write
// bytes with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace shoal::worker {

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

bool IsWhitespace(char32_t character);     // White_Space
bool IsWordCharacter(char32_t character);  // \w: letters, marks, digits, connectors, joiners

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
absl::Status Normalize(NormalForm form, std::string& text);

// GPT-2's map of bytes to printable characters, and back (-1: stands for no byte).
const std::array<char32_t, 256>& ByteCharacters();
int ByteOfCharacter(char32_t character);

}  // namespace shoal::worker

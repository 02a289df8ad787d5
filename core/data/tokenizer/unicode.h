// The Unicode that tokenizers need beyond UTF-8 (core/base/utf8.h) and regular expressions: white
// space and word characters, normal forms, and the printable characters as which byte-level
// tokenizers write bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "core/base/utf8.h"

namespace shoal::worker {

bool IsWhitespace(char32_t character);     // White_Space
bool IsWordCharacter(char32_t character);  // \w: letters, marks, digits, connectors, joiners

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
absl::Status Normalize(NormalForm form, std::string& text);

// GPT-2's map of bytes to printable characters, and back (-1: no byte).
const std::array<char32_t, 256>& ByteCharacters();
int ByteOfCharacter(char32_t character);

}  // namespace shoal::worker

// What Python's str does, over texts that know their origin. Positions are bytes; what counts,
// counts characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/data/jinja/text.h"

namespace shoal::jinja {

int64_t CountCharacters(std::string_view text);
// Where each character begins, and the end of the text.
std::vector<size_t> CharacterStarts(std::string_view text);
bool IsSpace(char32_t character);  // as Python's str.isspace

enum class Side { kLeft, kRight, kBoth };
// Strips white space, or the characters of `characters`.
Text Strip(const Text& text, Side side, std::optional<std::string_view> characters);

// The parts between `separator`, which is not empty, at most `limit` times (negative: all); without
// one, between white space, and none is empty.
std::vector<Text> Split(const Text& text, std::optional<std::string_view> separator, int64_t limit);
std::vector<Text> SplitFromRight(const Text& text, std::string_view separator, int64_t limit);
Text Replace(const Text& text, std::string_view from, const Text& to, int64_t limit);

enum class Case { kUpper, kLower, kTitle, kCapitalize };
// Maps character by character.
Text ChangeCase(const Text& text, Case to);

}  // namespace shoal::jinja

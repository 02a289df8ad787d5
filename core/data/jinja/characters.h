// What Python's str does, over texts that know their origin. Positions are bytes; what counts,
// counts characters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/data/jinja/budget.h"
#include "core/data/jinja/text.h"

namespace shoal::jinja {

int64_t CountCharacters(std::string_view text);
// Where the character begins that is `characters` behind the one at `at` (negative: before it); the
// end of the text at most, and 0 at least.
size_t Advance(std::string_view text, size_t at, int64_t characters);
// The beginning of a text, at most so many bytes, as one line of a message.
inline constexpr size_t kMaxShown = 64;
std::string OneLine(std::string_view text, size_t max_bytes);
bool IsSpace(char32_t character);      // as Python's str.isspace
bool IsPrintable(char32_t character);  // as Python's str.isprintable

enum class Side { kLeft, kRight, kBoth };
// Strips white space, or the characters of `characters`.
absl::StatusOr<Text> Strip(const Text& text, Side side, std::optional<std::string_view> characters,
                           Budget& budget);

// As find of a std::string_view, in time that is linear in both, however they repeat themselves.
size_t FindIn(std::string_view text, std::string_view part, size_t from = 0);
// How often `part`, which is not empty, is found in it, at most `limit` times (negative: all).
size_t CountIn(std::string_view text, std::string_view part, int64_t limit);

// The parts between `separator`, which is not empty, at most `limit` times (negative: all); without
// one, between white space, and none is empty.
absl::StatusOr<std::vector<Text>> Split(const Text& text, std::optional<std::string_view> separator,
                                        int64_t limit, Budget& budget);
absl::StatusOr<std::vector<Text>> SplitFromRight(const Text& text, std::string_view separator,
                                                 int64_t limit, Budget& budget);
absl::StatusOr<Text> Replace(const Text& text, std::string_view from, const Text& to, int64_t limit,
                             Budget& budget);

// kTitle is str.title, whose words are of letters; kWords is the filter title, whose words end with
// white space, - and opening brackets.
enum class Case { kUpper, kLower, kTitle, kWords, kCapitalize };
// Maps character by character.
absl::StatusOr<Text> ChangeCase(const Text& text, Case to, Budget& budget);

}  // namespace shoal::jinja

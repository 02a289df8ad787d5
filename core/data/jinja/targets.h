// What the assistant says in a rendered chat, known by who wrote each character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/data/jinja/text.h"

namespace shoal::jinja {

// Bytes [begin, end).
struct ByteSpan {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const ByteSpan&) const = default;
};

// A special token that the template wrote.
struct SpecialToken {
  ByteSpan span;
  bool stops = false;  // ends generation
};

// The longest stretches that the template alone wrote: only there are special tokens read.
std::vector<ByteSpan> TemplateSpans(const Text& text);

// What was rendered within {% generation %}.
std::vector<ByteSpan> GenerationSpans(const Text& text);

// What the message of `source` says: from behind the longest beginning of `prompt` (what
// add_generation_prompt adds) that stands before its first character with the template's text alone
// between, to the end of the first special token behind its last character, unless other data comes
// before that, and through those that follow at once and stop generation. What a template repeats
// of it behind a stop is no part of it. nullopt if it left no character. `specials` come in order.
std::optional<ByteSpan> MessageSpan(const Text& text, int32_t source, std::string_view prompt,
                                    const std::vector<SpecialToken>& specials);

}  // namespace shoal::jinja

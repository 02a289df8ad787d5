// What the assistant says in a rendered chat, known by who wrote each character.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/data/jinja/text.h"
#include "core/data/tokenizer/text_range.h"

namespace shoal::jinja {

using worker::TextRange;

// A special token that the template wrote.
struct SpecialToken {
  TextRange span;
  bool stops = false;  // ends generation
};

// The longest stretches that the template alone wrote: only there are special tokens read.
std::vector<TextRange> TemplateSpans(const Text& text);

// What was rendered within {% generation %}.
std::vector<TextRange> GenerationSpans(const Text& text);

// What the message of `source` says: from behind the longest beginning of `prompt` (what
// add_generation_prompt adds) that stands before its first character with the template's text alone
// between, to the end of the first special token behind its last character, unless other data comes
// before that, and through those that follow at once and stop generation. What a template repeats
// of it behind a stop is no part of it. nullopt if it left no character. `specials` come in order.
std::optional<TextRange> MessageSpan(const Text& text, int32_t source, std::string_view prompt,
                                     const std::vector<SpecialToken>& specials);

}  // namespace shoal::jinja

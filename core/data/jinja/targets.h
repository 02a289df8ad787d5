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

// What add_generation_prompt adds.
struct Prompt {
  // `specials` are those of `text`, in order.
  static Prompt From(std::string_view text, const std::vector<SpecialToken>& specials);

  std::string_view text;
  // The least of it that stands for it: through its first special token, or (it has none) through
  // its first line with characters.
  size_t head = 0;
  bool has_special = false;
};

// What the message of `source` (or -source) says. It begins behind the longest beginning of
// `prompt`, its head at least, that stands before the message's first character with the template's
// text alone between, and cuts no special token. Where there is none, it begins behind the last
// special token there, or (the prompt has no such token) with the message.
//
// It ends with the first special token behind the message's last character that stops generation,
// with the template's text alone between and no prompt; else with the first special token there;
// else with the message. Those that follow at once and stop belong to it. What a template repeats
// of a message behind a stop is no part of it. nullopt if it left no character. `specials` come in
// order.
std::optional<TextRange> MessageSpan(const Text& text, int32_t source, const Prompt& prompt,
                                     const std::vector<SpecialToken>& specials);

// Where the last reasoning within `span` ends, or the span begins: all text of a negative source is
// reasoning.
size_t BehindReasoning(const Text& text, TextRange span);

}  // namespace shoal::jinja

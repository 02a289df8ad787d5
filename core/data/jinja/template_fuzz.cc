// Any template: it is refused by name and line, or rendered within its bounds, and no text of the
// data comes out as the template's.
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/base/utf8.h"
#include "core/data/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using shoal::jinja::Value;
  // No template writes this character by itself: lexer and escapes take it from the input alone.
  constexpr std::string_view kMark = "\U0001F991";
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = shoal::jinja::Template::Parse(source, "fuzz");
  if (!parsed.ok()) {
    SHOAL_CHECK(parsed.status().message().find("fuzz:") == 0);
    return 0;
  }
  static const auto& messages = *new auto(nlohmann::ordered_json::parse(
      "[{\"role\": \"user\", \"content\": \"a \U0001F991 b\\n\"}, {\"role\": \"assistant\", "
      "\"content\": \" \U0001F991\", \"n\": [1, 2.5, null, true]}]"));
  const shoal::jinja::RenderOptions options{
      .limits = {.steps = 20'000, .made_bytes = 1 << 22, .output_bytes = 1 << 16}};
  const auto text = parsed->Render({{"messages", Value::FromJson(messages, 1)},
                                    {"add_generation_prompt", Value(true)},
                                    {"tools", Value(shoal::jinja::None{})}},
                                   options);
  if (!text.ok()) {
    SHOAL_CHECK(text.status().message().find("fuzz:") == 0);
    return 0;
  }
  SHOAL_CHECK(!shoal::FirstInvalidUtf8(text->str()).has_value());
  SHOAL_CHECK(text->empty() ? text->runs().empty() : text->runs().back().end == text->size());
  const bool writes_mark =
      source.find(kMark) != std::string_view::npos || source.find("\\U") != std::string_view::npos;
  for (size_t at = text->str().find(kMark); at != std::string::npos && !writes_mark;
       at = text->str().find(kMark, at + 1)) {
    SHOAL_CHECK(text->OriginAt(at).source == 1);
  }
  return 0;
}

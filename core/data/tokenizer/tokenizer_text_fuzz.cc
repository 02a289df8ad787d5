// Any bytes as text, for tokenizers of each kind: invalid UTF-8 is refused, and byte-level
// tokenizers lose nothing.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/data/tokenizer/unicode.h"

namespace {

std::unique_ptr<shoal::worker::Tokenizer> Load(const char* name) {
  return shoal::worker::Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/" + name +
                                        ".tokenizer.json")
      .value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto& lossless =
      *new auto(std::array{Load("gpt2"), Load("llama3"), Load("o200k"), Load("trained")});
  static const auto& others =
      *new auto(std::array{Load("qwen2"), Load("llama2"), Load("metaspace"), Load("added")});
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const bool valid = !shoal::FirstInvalidUtf8(text).has_value();
  for (const auto& tokenizer : lossless) {
    const auto ids = tokenizer->Encode(text, {.parse_special = false});
    SHOAL_CHECK(ids.ok() == valid);
    SHOAL_CHECK(!valid || tokenizer->Decode(*ids) == text);
  }
  for (const auto& tokenizer : others) {
    for (const bool continues : {false, true}) {
      const auto ids = tokenizer->Encode(text, {.continues = continues});
      SHOAL_CHECK(ids.ok() == valid);
      if (valid) {
        tokenizer->Decode(*ids);
      }
    }
  }
  SHOAL_CHECK(!shoal::FirstInvalidUtf8(shoal::LossyUtf8(text)).has_value());
  return 0;
}

// Any tokenizer.json is read or refused, and what was read encodes and decodes without harm.
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/data/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = shoal::worker::Tokenizer::Parse(json, "tokenizer.json");
  if (!tokenizer.ok()) {
    return 0;
  }
  for (const std::string_view text :
       {std::string_view("Hello, w\xC3\xB6rld 123 <s> aaaa\n\n"), json.substr(0, 64)}) {
    const auto ids = (*tokenizer)->Encode(text);
    if (ids.ok()) {
      for (const int32_t id : *ids) {
        SHOAL_CHECK(id >= 0 && id < (*tokenizer)->vocabulary());
      }
      (*tokenizer)->Decode(*ids);
      (*tokenizer)->Decode(*ids, false);
    }
  }
  return 0;
}

// Any JSONL line is read or refused, and what is read encodes to labels that fit its tokens.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/data/sample_encoder.h"
#include "core/data/token_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace shoal;
  static const auto& tokenizer =
      *worker::Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/llama2.tokenizer.json")
           .value()
           .release();
  static const auto& encoder = *new auto(
      worker::SampleEncoder::Create(&tokenizer, plan::Template::kPlain, {.bos = 1, .eos = 2}, 620)
          .value());
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  const auto sample = worker::ParseJsonlLine(line, {.vocabulary = 620}, "file:1");
  if (!sample.ok()) {
    return 0;
  }
  const auto encoded = encoder.Encode(*sample, "file:1");
  SHOAL_CHECK(encoded.ok());
  SHOAL_CHECK(encoded->size() == 1);
  const worker::EncodedSample& only = encoded->front();
  SHOAL_CHECK(only.tokens.size() == only.labels.size());
  int64_t targets = 0;
  for (size_t i = 0; i < only.tokens.size(); ++i) {
    SHOAL_CHECK(only.tokens[i] >= 0 && only.tokens[i] < 620);
    const bool last = i + 1 == only.tokens.size();
    SHOAL_CHECK(!last || only.labels[i] == formats::kIgnoredLabel);
    targets += only.labels[i] != formats::kIgnoredLabel ? 1 : 0;
  }
  SHOAL_CHECK(targets == only.targets);
  return 0;
}

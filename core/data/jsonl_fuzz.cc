// Any JSONL line is read or refused, as a sample and as a pair, and what is read encodes to labels
// that fit its tokens.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/check.h"
#include "core/data/sample_encoder.h"
#include "core/data/token_file.h"

namespace {

using namespace shoal;

worker::SampleEncoder EncoderOf(plan::Objective objective) {
  static const auto& tokenizer =
      *worker::Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/llama2.tokenizer.json")
           .value()
           .release();
  return worker::SampleEncoder::Create(&tokenizer, plan::Template::kPlain, {.bos = 1, .eos = 2},
                                       620, {.objective = objective})
      .value();
}

void Check(std::string_view line, const worker::SampleEncoder& encoder) {
  const auto sample = worker::ParseJsonlLine(
      line, {.vocabulary = 620, .objective = encoder.learning().objective}, "file:1");
  if (!sample.ok()) {
    return;
  }
  const bool pair = encoder.learning().objective == plan::Objective::kDpo;
  const auto encoded = encoder.Encode(*sample, "file:1");
  SHOAL_CHECK(encoded.ok() || pair);  // whose weights are refused
  if (!encoded.ok()) {
    return;
  }
  SHOAL_CHECK(encoded->size() == 1);
  const worker::EncodedSample& only = encoded->front();
  SHOAL_CHECK(only.tokens.size() == only.labels.size());
  SHOAL_CHECK(pair == (only.chosen.tokens > 0));
  int64_t targets = 0;
  for (size_t i = 0; i < only.tokens.size(); ++i) {
    SHOAL_CHECK(only.tokens[i] >= 0 && only.tokens[i] < 620);
    const bool last = i + 1 == only.tokens.size() || i + 1 == only.chosen.tokens;
    SHOAL_CHECK(!last || only.labels[i] == formats::kIgnoredLabel);
    targets += only.labels[i] != formats::kIgnoredLabel ? 1 : 0;
  }
  SHOAL_CHECK(targets == only.targets || (pair && only.targets == 0));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto& sft = *new auto(EncoderOf(plan::Objective::kSft));
  static const auto& dpo = *new auto(EncoderOf(plan::Objective::kDpo));
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  Check(line, sft);
  Check(line, dpo);
  return 0;
}

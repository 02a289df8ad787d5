// Compares Shoal's tokenizer with Hugging Face's: testdata/make_tokenizers.py made the files and
// recorded the library's result for each text.
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/data/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::worker {
namespace {

using Ids = std::vector<int32_t>;

class TokenizerGoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(TokenizerGoldenTest, AgreesWithHuggingFace) {
  const std::string base = std::string(SHOAL_TESTDATA) + "/" + GetParam();
  const auto tokenizer = Tokenizer::Load(base + ".tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto expected = ReadFile(base + ".expected.json");
  ASSERT_TRUE(expected.ok()) << expected.status();
  const nlohmann::json cases = nlohmann::json::parse(*expected);
  ASSERT_GT(cases.size(), 100u);
  for (const nlohmann::json& test : cases) {
    const std::string text = test["text"];
    SCOPED_TRACE(text);
    const auto ids = (*tokenizer)->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, test["ids"].get<Ids>());
    EXPECT_EQ((*tokenizer)->Encode(text, {.add_special = false}).value(),
              test["plain_ids"].get<Ids>());
    EXPECT_EQ((*tokenizer)->Decode(*ids, true), test["decoded"].get<std::string>());
    EXPECT_EQ((*tokenizer)->Decode(*ids, false), test["decoded_all"].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerGoldenTest,
                         ::testing::Values("gpt2", "gpt2_prefix_space", "qwen2", "llama3", "o200k",
                                           "deepseek", "llama2", "metaspace", "added", "trained"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shoal::worker

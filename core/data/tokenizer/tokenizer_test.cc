#include "core/data/tokenizer/tokenizer.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;
using nlohmann::json;

json Fixture(const std::string& name) {
  return json::parse(
      ReadFile(std::string(SHOAL_TESTDATA) + "/" + name + ".tokenizer.json").value());
}

std::string ParseError(const std::string& text) {
  const auto tokenizer = Tokenizer::Parse(text, "tokenizer.json");
  return tokenizer.ok() ? "parsed" : std::string(Message(tokenizer.status()));
}

// A model over the letters a, b, c with merges "ab" (first) and "abc".
json SmallModel() {
  return {{"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"abc", 4}, {"<s>", 5}}},
            {"merges", {"a b", "ab c"}}}},
          {"added_tokens", {{{"id", 5}, {"content", "<s>"}, {"special", true}}}},
          {"decoder", {{"type", "Fuse"}}}};
}

TEST(TokenizerTest, MergesByRank) {
  const auto tokenizer = Tokenizer::Parse(SmallModel().dump(), "tokenizer.json").value();
  EXPECT_THAT(tokenizer->Encode("abcab<s>ca").value(), ElementsAre(4, 3, 5, 2, 0));
  EXPECT_EQ(tokenizer->vocabulary(), 6);
  EXPECT_EQ(tokenizer->TokenToId("abc"), 4);
  EXPECT_EQ(tokenizer->TokenToId("abd"), std::nullopt);
  EXPECT_EQ(tokenizer->IdToToken(3), "ab");
  EXPECT_EQ(tokenizer->IdToToken(6), std::nullopt);
  EXPECT_TRUE(tokenizer->IsSpecial(5));
  EXPECT_EQ(tokenizer->Decode(Ids{4, 5, 77, -1, 3}), "abcab");
  EXPECT_EQ(tokenizer->Decode(Ids{4, 5}, false), "abc<s>");
}

TEST(TokenizerTest, SpecialTokensInUsersTextStayText) {
  json file = SmallModel();
  file["model"]["vocab"].update({{"<", 6}, {"s", 7}, {">", 8}});
  const auto tokenizer = Tokenizer::Parse(file.dump(), "tokenizer.json").value();
  EXPECT_THAT(tokenizer->Encode("a<s>", {.parse_special = false}).value(), ElementsAre(0, 6, 7, 8));
}

TEST(TokenizerTest, ContinuedTextGetsNoPrefix) {
  for (const char* kind : {"llama2", "metaspace", "gpt2_prefix_space"}) {
    SCOPED_TRACE(kind);
    const auto tokenizer = Tokenizer::Parse(Fixture(kind).dump(), kind).value();
    const EncodeOptions plain{.add_special = false};
    const EncodeOptions continued{.add_special = false, .continues = true};
    EXPECT_EQ(tokenizer->Encode("word", plain).value(),
              tokenizer->Encode(" word", continued).value());
    EXPECT_NE(tokenizer->Encode("word", plain).value(),
              tokenizer->Encode("word", continued).value());
    EXPECT_TRUE(tokenizer->Encode("", continued).value().empty());
  }
}

TEST(TokenizerTest, HashIsOfTheBytes) {
  const std::string text = SmallModel().dump();
  const auto tokenizer = Tokenizer::Parse(text, "tokenizer.json").value();
  EXPECT_EQ(tokenizer->hash(), Tokenizer::Parse(text, "another name").value()->hash());
  EXPECT_NE(tokenizer->hash(), Tokenizer::Parse(text + " ", "tokenizer.json").value()->hash());
}

TEST(TokenizerTest, TextItCannotWriteIsAnError) {
  const auto tokenizer = Tokenizer::Parse(SmallModel().dump(), "tokenizer.json").value();
  EXPECT_REFUSED(tokenizer->Encode("abx").status(), "no token for U+0078");
  EXPECT_REFUSED(tokenizer->Encode("ab\xff").status(), "not UTF-8 at byte 2");
}

TEST(TokenizerTest, RefusesByNameWhatItDoesNotKnow) {
  const auto with = [](const std::string& pointer, const json& value) {
    json file = SmallModel();
    file[json::json_pointer(pointer)] = value;
    return ParseError(file.dump());
  };
  EXPECT_EQ(with("/model/type", "Unigram"),
            "tokenizer.json: model type 'Unigram' is not supported; shoal reads BPE");
  EXPECT_THAT(with("/model/dropout", 0.1), HasSubstr("dropout is not supported"));
  EXPECT_EQ(with("/model/dropout", nullptr), "parsed");
  EXPECT_THAT(with("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix '</w>'"));
  EXPECT_THAT(with("/normalizer", {{"type", "Lowercase"}}),
              HasSubstr("normalizer: type 'Lowercase'"));
  EXPECT_THAT(with("/pre_tokenizer", {{"type", "BertPreTokenizer"}}),
              HasSubstr("'BertPreTokenizer' is not"));
  EXPECT_THAT(with("/decoder", {{"type", "CTC"}}),
              HasSubstr("decoder: type 'CTC' is not supported"));
  EXPECT_THAT(with("/post_processor", {{"type", "BertProcessing"}}),
              HasSubstr("'BertProcessing' is not"));
  EXPECT_THAT(with("/unheard_of", 1), HasSubstr("key 'unheard_of' is not supported"));
  EXPECT_THAT(with("/normalizer", {{"type", "NFC"}, {"extra", 1}}),
              HasSubstr("key 'extra' is not supported"));
  const json split = {
      {"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "\\W+"}}}};
  EXPECT_THAT(with("/pre_tokenizer", split), HasSubstr("\\W is not supported"));
}

TEST(TokenizerTest, RefusesBrokenFiles) {
  const auto with = [](const std::string& pointer, const json& value) {
    json file = SmallModel();
    file[json::json_pointer(pointer)] = value;
    return ParseError(file.dump());
  };
  EXPECT_THAT(ParseError(""), HasSubstr("tokenizer.json: not valid JSON at byte"));
  EXPECT_THAT(ParseError("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(ParseError("{}"), HasSubstr("tokenizer.json: model"));
  EXPECT_THAT(with("/model/merges/0", "ab"), HasSubstr("merge 0: 'ab' is not two tokens"));
  EXPECT_THAT(with("/model/merges/0", {"a", "zz"}),
              HasSubstr("merge 0 ('a' 'zz'): 'zz' is not in the vocabulary"));
  EXPECT_THAT(with("/model/vocab/c", 0), HasSubstr("id 0 belongs to both"));
  EXPECT_THAT(with("/model/vocab/c", -1), HasSubstr("id of 'c' is -1"));
  EXPECT_THAT(with("/model/vocab/c", 4000000000),
              HasSubstr("is 4000000000, expected an integer from 0 to"));
  EXPECT_THAT(with("/model/vocab/c", 1.5), HasSubstr("is 1.5, expected an integer"));
  EXPECT_THAT(with("/model/unk_token", "<unk>"),
              HasSubstr("unk_token '<unk>' is not in the vocabulary"));
  EXPECT_THAT(with("/added_tokens/0/id", 4), HasSubstr("id 4 belongs to both"));
  EXPECT_THAT(with("/added_tokens/0/id", 9), HasSubstr("has both id 5 and id 9"));
  EXPECT_THAT(with("/added_tokens/0/content", ""), HasSubstr("content is empty"));
  json nested = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) {
    nested = {{"type", "Sequence"}, {"normalizers", {nested}}};
  }
  EXPECT_THAT(with("/normalizer", nested), HasSubstr("nested more than"));
  EXPECT_FALSE(Tokenizer::Load("/nonexistent/tokenizer.json").ok());
}

// A pattern that takes exponential time must end in an error, and soon.
TEST(TokenizerTest, HostilePatternGivesUp) {
  json file = SmallModel();
  file["pre_tokenizer"] = {
      {"type", "Split"}, {"behavior", "Isolated"}, {"pattern", {{"Regex", "^(a|a|b)*[xyz]"}}}};
  const auto tokenizer = Tokenizer::Parse(file.dump(), "tokenizer.json").value();
  EXPECT_REFUSED(tokenizer->Encode(std::string(400, 'a')).status(), "gave up");
}

// The heap (long pieces) and the scan (short ones) find the same merges: a direct oracle decides.
TEST(TokenizerTest, LongPiecesMergeAsTheRulesSay) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    json vocab = {{"a", 0}, {"b", 1}};
    std::vector<std::string> tokens = {"a", "b"};
    std::vector<std::pair<std::string, std::string>> rules;
    json merges = json::array();
    for (int i = 0; i < 12; ++i) {
      const std::string left = tokens[random.Below(tokens.size())];
      const std::string right = tokens[random.Below(tokens.size())];
      if (vocab.contains(left + right)) {
        continue;
      }
      vocab[left + right] = tokens.size();
      tokens.push_back(left + right);
      rules.emplace_back(left, right);
      merges.push_back(json::array({left, right}));
    }
    const json file = {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
    const auto tokenizer = Tokenizer::Parse(file.dump(), "tokenizer.json").value();
    std::vector<std::string> symbols;
    std::string text;
    const int64_t length = random.Between(1, 80);
    for (int64_t i = 0; i < length; ++i) {
      symbols.emplace_back(random.Below(2) == 0 ? "a" : "b");
      text += symbols.back();
    }
    // The oracle applies the first rule that applies anywhere, at the leftmost place, until none
    // does.
    for (bool merged = true; merged;) {
      merged = false;
      for (const auto& [left, right] : rules) {
        for (size_t i = 0; i + 1 < symbols.size() && !merged; ++i) {
          if (symbols[i] == left && symbols[i + 1] == right) {
            symbols[i] += right;
            symbols.erase(symbols.begin() + static_cast<int64_t>(i) + 1);
            merged = true;
          }
        }
        if (merged) {
          break;
        }
      }
    }
    Ids expected;
    for (const std::string& symbol : symbols) {
      expected.push_back(vocab[symbol]);
    }
    ASSERT_EQ(tokenizer->Encode(text).value(), expected) << file << " " << text;
  }
}

TEST(TokenizerRealDataTest, StoriesRoundTripsGsm8k) {
  const std::string data = TestData();
  if (data.empty()) {
    GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
  }
  const auto tokenizer = Tokenizer::Load(data + "/stories260k").value();
  EXPECT_EQ(tokenizer->vocabulary(), 512);
  EXPECT_THAT(tokenizer->prefix(), ElementsAre(1));
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode("Once upon a time").value()), "Once upon a time");
  int64_t tokens = 0;
  std::string rest = ReadFile(data + "/gsm8k/train.jsonl").value();
  for (size_t at = 0; at < rest.size();) {
    const size_t end = rest.find('\n', at);
    const json sample = json::parse(rest.substr(at, end - at));
    at = end + 1;
    for (const char* field : {"question", "answer"}) {
      const std::string text = sample[field];
      const Ids ids = tokenizer->Encode(text).value();
      tokens += static_cast<int64_t>(ids.size());
      ASSERT_EQ(tokenizer->Decode(ids), text);
    }
  }
  EXPECT_EQ(tokens, 2614894) << "what the tokenizers library counts";
}

}  // namespace
}  // namespace shoal::worker

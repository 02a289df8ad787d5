#include "core/data/synthetic/train_tokenizer.h"

#include <filesystem>
#include <map>
#include <string>

#include "core/base/file.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/data/chat_template.h"
#include "core/data/synthetic/synth.h"
#include "core/data/tokenizer/tokenizer.h"
#include "core/model/huggingface/hf_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace shoal::worker {
namespace {

using ::testing::HasSubstr;

class TrainTokenizerTest : public ::testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const std::string& folder_ = temporary_.path();
  const std::string data_ = temporary_ / "data.jsonl";
};

TEST_F(TrainTokenizerTest, MakesWhatTheQuickStartNeeds) {
  ASSERT_TRUE(WriteSynth({.samples = 200}, data_).ok());
  ASSERT_TRUE(WriteTrainedTokenizer(data_, {.vocabulary = 400}, folder_).ok());
  const auto tokenizer = Tokenizer::Load(folder_).value();
  EXPECT_GT(tokenizer->vocabulary(), 300);
  EXPECT_LE(tokenizer->vocabulary(), 400);
  const auto special = formats::ReadSpecialTokens(folder_).value();
  EXPECT_EQ(special.bos, 0);
  EXPECT_EQ(special.eos, 1);
  for (const auto kind : {plan::Template::kPlain, plan::Template::kChatML}) {
    const auto chat = ChatTemplate::Create(kind, *tokenizer, special);
    ASSERT_TRUE(chat.ok()) << chat.status();
    // Words of the data and of the templates are single tokens, and the estimate of lengths is
    // about right.
    int64_t tokens = 0;
    int64_t estimate = 0;
    for (int64_t i = 0; i < 100; ++i) {
      const SynthSample sample = MakeSynthSample({}, i);
      tokens += static_cast<int64_t>(chat->Encode(sample.messages)->tokens.size());
      for (const ChatMessage& message : sample.messages) {
        estimate += EstimateTokens(message);
      }
    }
    EXPECT_NEAR(static_cast<double>(tokens) / static_cast<double>(estimate), 1,
                kind == plan::Template::kPlain ? 0.05 : 0.25);
  }
  for (const char* text : {"Größe 你好 🤗 \x01", "Sort 4 1 3.", "\n\n  x"}) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text).value()), text);
  }
}

TEST_F(TrainTokenizerTest, IsDeterministic) {
  ASSERT_TRUE(WriteSynth({.samples = 50}, data_).ok());
  EXPECT_EQ(TrainTokenizer(data_, {.vocabulary = 300}).value(),
            TrainTokenizer(data_, {.vocabulary = 300}).value());
}

// Compares the incremental trainer with recounting all pairs for each merge.
TEST_F(TrainTokenizerTest, ChoosesTheMostFrequentPairs) {
  Random random(9);
  for (int round = 0; round < 20; ++round) {
    std::map<std::string, int> words;
    std::string lines;
    for (int i = 0; i < 30; ++i) {
      std::string word;
      const int64_t length = random.Between(1, 8);
      for (int64_t k = 0; k < length; ++k) {
        word += static_cast<char>('a' + random.Below(3));
      }
      lines += fmt::format("{{\"prompt\":\"{}\",\"completion\":\"\"}}\n", word);
      words[word] += 1;             // as it is
      words["\u0120" + word] += 1;  // after "User:"
    }
    ASSERT_TRUE(WriteFileAtomically(data_, lines).ok());
    const auto file = nlohmann::json::parse(TrainTokenizer(data_, {.vocabulary = 300}).value());
    // The roles' own words make merges too; each merge of letters must have been a most frequent
    // one of those.
    std::vector<std::pair<std::vector<std::string>, int>> split;
    for (const auto& [word, count] : words) {
      std::vector<std::string> symbols;
      for (size_t i = 0; i < word.size();) {
        const size_t size = static_cast<unsigned char>(word[i]) < 0x80 ? 1 : 2;
        symbols.push_back(word.substr(i, size));
        i += size;
      }
      split.emplace_back(std::move(symbols), count);
    }
    const std::string letters = "abc\xC4\xA0";
    for (const std::string merge : file["model"]["merges"]) {
      const size_t space = merge.find(' ');
      const std::string left = merge.substr(0, space);
      const std::string right = merge.substr(space + 1);
      if ((left + right).find_first_not_of(letters) != std::string::npos) {
        continue;
      }
      std::map<std::pair<std::string, std::string>, int> counts;
      for (const auto& [symbols, count] : split) {
        for (size_t i = 0; i + 1 < symbols.size(); ++i) {
          counts[{symbols[i], symbols[i + 1]}] += count;
        }
      }
      int best = 0;
      for (const auto& [pair, count] : counts) {
        best = std::max(best, count);
      }
      ASSERT_EQ((counts[{left, right}]), best) << merge;
      for (auto& [symbols, count] : split) {
        for (size_t i = 0; i + 1 < symbols.size(); ++i) {
          if (symbols[i] == left && symbols[i + 1] == right) {
            symbols[i] += right;
            symbols.erase(symbols.begin() + static_cast<int64_t>(i) + 1);
          }
        }
      }
    }
  }
}

TEST_F(TrainTokenizerTest, RefusesWhatCannotBe) {
  ASSERT_TRUE(WriteSynth({.samples = 2}, data_).ok());
  const auto error = [&](const TrainTokenizerOptions& options) {
    return std::string(Message(TrainTokenizer(data_, options).status()));
  };
  EXPECT_THAT(error({.vocabulary = 100}), HasSubstr("a vocabulary of 100 is not possible"));
  ASSERT_TRUE(WriteFileAtomically(data_, "{\"input_ids\":[1],\"labels\":[1]}").ok());
  EXPECT_THAT(error({}), HasSubstr("data.jsonl:1: a tokenizer is trained on text"));
  ASSERT_TRUE(WriteFileAtomically(data_, "").ok());
  EXPECT_THAT(error({}), HasSubstr("no text to train"));
}

}  // namespace
}  // namespace shoal::worker

#include "core/data/prepare.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/data/sample_reader.h"
#include "core/data/token_file.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

TEST(ShiftLabelsTest, BelongToThePositionThatPredicts) {
  EXPECT_THAT(ShiftLabels(Ids{5, 6, -100, 8}), ElementsAre(6, -100, 8, -100));
  EXPECT_THAT(ShiftLabels(Ids{5}), ElementsAre(-100));
  EXPECT_THAT(ShiftLabels(Ids{}), ElementsAre());
}

class PrepareTest : public ::testing::Test {
 protected:
  PrepareTest() {
    tokenizer_ = Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/llama2.tokenizer.json").value();
    encoder_.emplace(
        SampleEncoder::Create(tokenizer_.get(), plan::Template::kPlain, {.bos = 1, .eos = 2}, 620)
            .value());
  }

  std::string Write(const std::string& contents) {
    const std::string path = folder_ / "data.jsonl";
    EXPECT_TRUE(WriteFileAtomically(path, contents).ok());
    return path;
  }
  absl::StatusOr<PrepareSummary> Run(const std::string& contents, const PrepareOptions& options) {
    return Prepare(Write(contents), output(), *encoder_, options);
  }
  std::string Error(const std::string& contents, const PrepareOptions& options = {}) {
    const auto summary = Run(contents, options);
    return summary.ok() ? "prepared" : std::string(Message(summary.status()));
  }
  std::string output() const { return folder_ / "data.tokens"; }

  const TemporaryFolder folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<SampleEncoder> encoder_;
};

TEST_F(PrepareTest, WeightsMultiplyAndBelongToThePositionThatPredicts) {
  const auto summary =
      Run(R"({"input_ids":[3,4,5,6],"labels":[3,4,5,6],"weights":[9,0.5,0,2],"weight":4})"
          "\n"
          R"({"input_ids":[3,4],"labels":[3,4]})",
          {.threads = 2});
  ASSERT_TRUE(summary.ok()) << summary.status();
  const auto file = formats::TokenFile::Open(output()).value();
  const auto sample = file->Sample(0).value();
  EXPECT_THAT(sample.labels, ElementsAre(4, -100, 6, -100)) << "0 leaves a token out";
  EXPECT_THAT(sample.weights, ElementsAre(2.0f, 1.0f, 8.0f, 1.0f));
  EXPECT_EQ(file->weight(0), 10);
  EXPECT_EQ(file->weight(1), 1);
  EXPECT_THAT(Error(R"({"input_ids":[3,4],"labels":[3,4],"weights":[1,1e-4],"weight":1e-4})"),
              HasSubstr("data.jsonl:1: token 1 weighs 9.999999e-09 in all, not from"));
  EXPECT_THAT(Error(R"({"prompt":"a","completion":"b","weight":0})"),
              HasSubstr("skipped for having no target token"));
}

TEST_F(PrepareTest, CutsWeightsWithTheirTokens) {
  const auto summary = Run(R"({"input_ids":[3,4,5,6],"labels":[3,4,5,6],"weights":[1,2,3,4]})",
                           {.max_sequence_tokens = 3, .oversize = plan::OversizePolicy::kTruncate});
  ASSERT_TRUE(summary.ok()) << summary.status();
  const auto file = formats::TokenFile::Open(output()).value();
  EXPECT_THAT(file->Sample(0)->weights, ElementsAre(2.0f, 3.0f, 1.0f));
}

TEST_F(PrepareTest, TrainOnSaysWhichRepliesAreLearnt) {
  const std::string chat = R"({"messages":[{"role":"user","content":"a"},)"
                           R"({"role":"assistant","content":"b"},{"role":"user","content":"c"},)"
                           R"({"role":"assistant","content":"<think>d</think>e"},)"
                           R"({"role":"user","content":"f"}]})";
  const auto samples = [&](plan::TrainOn train_on) {
    encoder_.emplace(SampleEncoder::Create(tokenizer_.get(), plan::Template::kPlain,
                                           {.bos = 1, .eos = 2}, 620, {.train_on = train_on})
                         .value());
    EXPECT_TRUE(Run(chat, {}).ok());
    const auto file = formats::TokenFile::Open(output()).value();
    std::vector<std::pair<int64_t, std::string>> samples;  // tokens, and what is learnt
    for (int64_t i = 0; i < file->samples(); ++i) {
      Ids learnt = file->Sample(i)->labels;
      std::erase(learnt, formats::kIgnoredLabel);
      samples.emplace_back(file->tokens(i), tokenizer_->Decode(learnt, false));
    }
    return samples;
  };
  using Samples = std::vector<std::pair<int64_t, std::string>>;
  const Samples all = samples(plan::TrainOn::kAll);
  ASSERT_EQ(all.size(), 1u);
  const int64_t whole = all[0].first;
  EXPECT_EQ(all[0].second, "b</s> <think>d</think>e</s>");
  EXPECT_EQ(samples(plan::TrainOn::kLast), (Samples{{whole, "<think>d</think>e</s>"}}));
  EXPECT_EQ(samples(plan::TrainOn::kAnswer), (Samples{{whole, "b</s></think>e</s>"}}));
  const Samples each = samples(plan::TrainOn::kEach);
  ASSERT_EQ(each.size(), 2u) << "of each reply one";
  EXPECT_EQ(each[0].second, "b</s>");
  EXPECT_EQ(each[1].second, "<think>d</think>e</s>");
  EXPECT_LT(each[0].first, each[1].first);
  EXPECT_LT(each[1].first, whole) << "they end with it";
}

// They grow with the square of the replies.
TEST_F(PrepareTest, SamplesOfEachReplyAreBounded) {
  const std::string turns = R"({"role":"user","content":"a"},{"role":"assistant","content":"b"})";
  const std::string chat =
      fmt::format(R"({{"messages":[{}]}})", fmt::join(std::vector(6, turns), ","));
  const auto error = [&](plan::TrainOn train_on, int64_t most) {
    encoder_.emplace(SampleEncoder::Create(tokenizer_.get(), plan::Template::kPlain,
                                           {.bos = 1, .eos = 2}, 620,
                                           {.train_on = train_on, .most_tokens = most})
                         .value());
    return Error(chat);
  };
  ASSERT_EQ(error(plan::TrainOn::kEach, 1000), "prepared");
  const int64_t all = formats::TokenFile::Open(output()).value()->total_tokens();
  EXPECT_EQ(error(plan::TrainOn::kEach, all), "prepared");
  EXPECT_THAT(error(plan::TrainOn::kEach, all - 1),
              HasSubstr(fmt::format("data.jsonl:1: the samples that train_on: each makes of this "
                                    "conversation's replies have more than {} tokens",
                                    all - 1)));
  EXPECT_EQ(error(plan::TrainOn::kAll, 1), "prepared");
  EXPECT_EQ(error(plan::TrainOn::kLast, 1), "prepared");
}

TEST_F(PrepareTest, WeightsOfOneAreNone) {
  ASSERT_OK(Run(R"({"prompt":"a","completion":"b"})", {}).status());
  const std::string without = *ReadFile(output());
  ASSERT_OK(Run(R"({"prompt":"a","completion":"b","weight":1.0})", {}).status());
  EXPECT_EQ(*ReadFile(output()), without);
}

// Its tokens are there, and nothing of them is learnt: the same file as with such labels.
TEST_F(PrepareTest, AMessageOfWeightZeroIsNotTrainedOn) {
  const auto chat = [&](const std::string& first, const std::string& second) {
    const auto status = Run(fmt::format(R"({{"messages":[{{"role":"user","content":"a"}},)"
                                        R"({{"role":"assistant","content":"b"{}}},)"
                                        R"({{"role":"user","content":"c"}},)"
                                        R"({{"role":"assistant","content":"d"{}}}]}})",
                                        first, second),
                            {});
    EXPECT_TRUE(status.ok()) << status.status();
    return formats::TokenFile::Open(output()).value()->Sample(0).value();
  };
  const formats::TokenSample all = chat("", "");
  const formats::TokenSample last = chat(R"(,"weight":0)", "");
  const formats::TokenSample first = chat("", R"(,"weight":0)");
  EXPECT_EQ(last.tokens, all.tokens);
  EXPECT_TRUE(last.weights.empty()) << "what is left weighs 1";
  EXPECT_EQ(first.targets + last.targets, all.targets);
  EXPECT_EQ(first.targets, last.targets);
  for (size_t i = 0; i < all.labels.size(); ++i) {
    const bool learnt = all.labels[i] != formats::kIgnoredLabel;
    EXPECT_EQ((first.labels[i] == all.labels[i]) + (last.labels[i] == all.labels[i]),
              learnt ? 1 : 2);
  }
  const formats::TokenSample heavy = chat("", R"(,"weight":2.5)");
  EXPECT_EQ(heavy.labels, all.labels);
  for (size_t i = 0; i < all.labels.size(); ++i) {
    const bool in_last = last.labels[i] != formats::kIgnoredLabel;
    EXPECT_EQ(heavy.weights[i], in_last ? 2.5f : 1.0f) << i;
  }
}

TEST_F(PrepareTest, WritesShiftedLabels) {
  const auto summary = Run(R"({"input_ids":[3,4,5,6],"labels":[-100,4,-100,6]})"
                           "\n"
                           R"({"prompt":"Hi","completion":"Ho"})",
                           {.threads = 2});
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->samples, 2);
  const auto file = formats::TokenFile::Open(output()).value();
  ASSERT_EQ(file->samples(), 2);
  EXPECT_EQ(file->vocabulary(), 620);
  EXPECT_EQ(file->tokenizer_hash(), tokenizer_->hash());
  const auto first = file->Sample(0).value();
  EXPECT_THAT(Ids(first.tokens.begin(), first.tokens.end()), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(Ids(first.labels.begin(), first.labels.end()), ElementsAre(4, -100, 6, -100));
  const auto second = file->Sample(1).value();
  // Each label is the token that follows, and together they are the reply and its end.
  Ids targets;
  for (size_t i = 0; i < second.tokens.size(); ++i) {
    if (second.labels[i] != formats::kIgnoredLabel) {
      EXPECT_EQ(second.labels[i], second.tokens[i + 1]);
      targets.push_back(second.labels[i]);
    }
  }
  EXPECT_EQ(targets.back(), 2);
  EXPECT_EQ(encoder_->chat()->DecodeReply(targets), "Ho");
}

TEST_F(PrepareTest, EveryFormGivesTheSameTokens) {
  const auto tokens = [&](const std::string& contents) {
    EXPECT_TRUE(Run(contents, {.threads = 1}).ok());
    return ReadFile(output(), 1 << 20).value();
  };
  const std::string expected = tokens(R"({"prompt":"Hi","completion":"Ho"})"
                                      "\n"
                                      R"({"prompt":"1\n2","completion":"3"})");
  EXPECT_EQ(tokens(R"([{"prompt":"Hi","completion":"Ho"}, {"prompt":"1\n2","completion":"3"}])"),
            expected);
  EXPECT_EQ(tokens(R"({"instruction":"Hi","output":"Ho"})"
                   "\n"
                   R"({"instruction":"1","input":"2","output":"3"})"),
            expected);
  EXPECT_EQ(
      tokens(R"({"conversations":[{"from":"human","value":"Hi"},{"from":"gpt","value":"Ho"}]})"
             "\n"
             R"({"messages":[{"role":"user","content":"1\n2"},)"
             R"({"role":"assistant","content":"3"}]})"),
      expected);
}

TEST_F(PrepareTest, AFolderIsItsFilesAndTheCacheKnowsThem) {
  const std::string one = Write(R"({"prompt":"Hi","completion":"Ho"})");
  const auto prepared = [&] {
    return PrepareCached(folder_.path(), folder_ / "cache", *encoder_, {.threads = 1}).value();
  };
  EXPECT_EQ(prepared().summary.samples, 1);
  EXPECT_TRUE(prepared().from_cache);
  ASSERT_TRUE(
      WriteFileAtomically(folder_ / "more.json", R"([{"prompt":"a","completion":"b"}])").ok());
  EXPECT_FALSE(prepared().from_cache);
  EXPECT_EQ(prepared().summary.samples, 2);
  EXPECT_EQ(PrepareCached(folder_ / "m*.json", folder_ / "cache", *encoder_, {.threads = 1})
                .value()
                .summary.samples,
            1);
}

TEST_F(PrepareTest, OversizePolicies) {
  const std::string data = R"({"input_ids":[3,4,5,6,7,8],"labels":[3,4,5,6,7,8]})"
                           "\n\n"
                           R"({"input_ids":[3,4,5,6,7,8],"labels":[-100,-100,-100,-100,7,8]})"
                           "\n"
                           R"({"input_ids":[3,4],"labels":[3,4]})";
  PrepareOptions options{.max_sequence_tokens = 4};
  EXPECT_THAT(Error(data, options),
              HasSubstr("data.jsonl:1: the sample has 6 tokens, more than max_sequence_tokens 4"));
  EXPECT_FALSE(std::filesystem::exists(output()));
  options.oversize = plan::OversizePolicy::kSkip;
  auto summary = Run(data, options).value();
  EXPECT_EQ(summary.samples, 1);
  EXPECT_EQ(summary.skipped_oversize, 2);
  EXPECT_THAT(summary.first_oversize, HasSubstr("data.jsonl:1"));
  options.oversize = plan::OversizePolicy::kTruncate;
  summary = Run(data, options).value();
  EXPECT_EQ(summary.samples, 2);
  EXPECT_EQ(summary.truncated, 1);
  EXPECT_EQ(summary.skipped_oversize, 1);
  EXPECT_THAT(summary.first_oversize, HasSubstr("data.jsonl:3"));
  const auto file = formats::TokenFile::Open(output()).value();
  const auto cut = file->Sample(0).value();
  EXPECT_THAT(Ids(cut.tokens.begin(), cut.tokens.end()), ElementsAre(3, 4, 5, 6));
  EXPECT_THAT(Ids(cut.labels.begin(), cut.labels.end()), ElementsAre(4, 5, 6, -100));
  EXPECT_EQ(cut.targets, 3);
}

TEST_F(PrepareTest, SamplesWithoutTargetsAreCounted) {
  const std::string data = R"({"messages":[{"role":"user","content":"x"}]})"
                           "\n"
                           R"({"input_ids":[3,4],"labels":[3,-100]})"
                           "\n"
                           R"({"input_ids":[],"labels":[]})"
                           "\n"
                           R"({"prompt":"x","completion":""})";
  const auto summary = Run(data, {}).value();
  EXPECT_EQ(summary.samples, 1);  // an empty completion still has an end to learn
  EXPECT_EQ(summary.skipped_no_target, 3);
  EXPECT_THAT(summary.first_no_target, HasSubstr("data.jsonl:1"));
  EXPECT_THAT(Describe(summary), HasSubstr("3 skipped for having no target token, first"));
  EXPECT_THAT(Error(R"({"input_ids":[3],"labels":[3]})"), HasSubstr("no sample to train on"));
  EXPECT_THAT(Error(""), HasSubstr("no sample to train on: the file is empty"));
  EXPECT_THAT(Error("\n \n"), HasSubstr("no sample to train on: all its lines are blank"));
}

TEST_F(PrepareTest, BrokenLinesEndIt) {
  std::string data;
  for (int i = 0; i < 2000; ++i) {
    data += i == 1500   ? "{broken\n"
            : i == 1501 ? "{also\n"
                        : "{\"prompt\":\"x\",\"completion\":\"y\"}\n";
  }
  EXPECT_THAT(Error(data, {.threads = 2}), HasSubstr("data.jsonl:1501: not valid JSON"));
  EXPECT_FALSE(std::filesystem::exists(output()));
  EXPECT_THAT(Error(R"({"input_ids":[620],"labels":[3]})"),
              HasSubstr("data.jsonl:1: input_ids[0] is 620"));
}

TEST_F(PrepareTest, NeedsWhatTheDataNeeds) {
  const auto no_tokenizer = SampleEncoder::Create(nullptr, plan::Template::kPlain, {}, 100).value();
  const std::string path = Write(R"({"prompt":"x","completion":"y"})");
  EXPECT_REFUSED(Prepare(path, output(), no_tokenizer, {}).status(),
                 "data.jsonl:1: text needs the model's tokenizer.json");
  EXPECT_REFUSED(SampleEncoder::Create(tokenizer_.get(), plan::Template::kPlain, {}, 100).status(),
                 "the tokenizer has 620 tokens and the model 100 rows");
  // A missing template matters only if there is text to encode.
  const auto chatml =
      SampleEncoder::Create(tokenizer_.get(), plan::Template::kChatML, {}, 620).value();
  EXPECT_REFUSED(Prepare(path, output(), chatml, {}).status(), "<|im_start|>");
  EXPECT_TRUE(Prepare(Write(R"({"input_ids":[1,2],"labels":[1,2]})"), output(), chatml, {}).ok());
}

TEST_F(PrepareTest, CacheIsFoundAgainUntilSomethingChanges) {
  const std::string cache = folder_ / "cache";
  const std::string path = Write(
      "{\"prompt\":\"x\",\"completion\":\"y\"}\n{\"messages\":[{\"role\":\"user\",\"content\":"
      "\"x\"}]}\n");
  const auto first = PrepareCached(path, cache, *encoder_, {}).value();
  EXPECT_FALSE(first.from_cache);
  const auto again = PrepareCached(path, cache, *encoder_, {}).value();
  EXPECT_TRUE(again.from_cache);
  EXPECT_EQ(again.path, first.path);
  EXPECT_EQ(again.summary, first.summary);
  EXPECT_EQ(again.summary.skipped_no_target, 1);
  // Other options, another template or another file each make their own.
  EXPECT_FALSE(
      PrepareCached(path, cache, *encoder_, {.max_sequence_tokens = 99}).value().from_cache);
  const auto other_end =
      SampleEncoder::Create(tokenizer_.get(), plan::Template::kPlain, {.bos = 1, .eos = 0}, 620)
          .value();
  EXPECT_FALSE(PrepareCached(path, cache, other_end, {}).value().from_cache);
  Write("{\"prompt\":\"xx\",\"completion\":\"y\"}\n");
  EXPECT_FALSE(PrepareCached(path, cache, *encoder_, {}).value().from_cache);
  // A damaged one is made again.
  const auto last = PrepareCached(path, cache, *encoder_, {}).value();
  ASSERT_TRUE(last.from_cache);
  ASSERT_TRUE(WriteFileAtomically(last.path, "SHOALTOK").ok());
  EXPECT_FALSE(PrepareCached(path, cache, *encoder_, {}).value().from_cache);
}

TEST_F(PrepareTest, TokenFilesAreUsedAsTheyAre) {
  ASSERT_TRUE(Run(R"({"prompt":"x","completion":"y"})", {}).ok());
  const auto used = PrepareCached(output(), folder_ / "cache", *encoder_, {}).value();
  EXPECT_EQ(used.path, output());
  EXPECT_EQ(used.summary.samples, 1);
  EXPECT_GT(used.summary.targets, 0);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "cache"));
  const auto error = [&](const SampleEncoder& encoder, const PrepareOptions& options) {
    return std::string(
        Message(PrepareCached(output(), folder_ / "cache", encoder, options).status()));
  };
  EXPECT_THAT(error(*encoder_, {.max_sequence_tokens = 3}),
              HasSubstr("more than max_sequence_tokens 3"));
  EXPECT_THAT(error(SampleEncoder::Create(nullptr, plan::Template::kPlain, {}, 100).value(), {}),
              HasSubstr("made for a vocabulary of 620"));
  const auto other = Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/gpt2.tokenizer.json").value();
  EXPECT_THAT(
      error(SampleEncoder::Create(other.get(), plan::Template::kPlain, {.eos = 0}, 620).value(),
            {}),
      HasSubstr("another tokenizer.json"));
}

TEST_F(PrepareTest, RealDataKeepsEveryReply) {
  const std::string root = TestData();
  if (root.empty()) {
    GTEST_SKIP() << "SHOAL_TEST_DATA is not set";
  }
  const auto stories = Tokenizer::Load(root + "/stories260k").value();
  const auto encoder =
      SampleEncoder::Create(stories.get(), plan::Template::kPlain, {.bos = 1, .eos = 2}, 512)
          .value();
  struct Input {
    std::string path;
    std::map<std::string, std::string> fields;
    int64_t samples;
  };
  for (const Input& input :
       {Input{
            root + "/gsm8k/train.jsonl", {{"prompt", "question"}, {"completion", "answer"}}, 7473},
        Input{root + "/gsm8k-chats/train.jsonl", {}, 1337}}) {
    SCOPED_TRACE(input.path);
    const PrepareOptions options{.fields = input.fields, .max_sequence_tokens = 1 << 20};
    const auto summary = Prepare(input.path, output(), encoder, options);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->samples, input.samples);
    const auto file = formats::TokenFile::Open(output()).value();
    const auto reader = SampleReader::Open(input.path).value();
    for (int64_t i = 0; i < file->samples(); ++i) {
      const auto line = reader->Next().value();
      const auto sample = ParseJsonlLine(*line, {.fields = input.fields}, reader->where()).value();
      const auto encoded = file->Sample(i).value();
      Ids reply;
      size_t turn = 0;
      for (size_t k = 0; k < encoded.tokens.size(); ++k) {
        if (encoded.labels[k] == formats::kIgnoredLabel) {
          continue;
        }
        reply.push_back(encoded.labels[k]);
        if (encoded.labels[k] == 2) {
          while (sample.messages[turn].role != Role::kAssistant) {
            ++turn;
          }
          ASSERT_EQ(encoder.chat()->DecodeReply(reply), sample.messages[turn].content);
          reply.clear();
          ++turn;
        }
      }
      ASSERT_TRUE(reply.empty());
    }
  }
}

}  // namespace
}  // namespace shoal::worker

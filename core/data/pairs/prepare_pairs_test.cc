// Preparation of pairs: what is learnt of them, what is too long, and what they are mixed with.
#include <optional>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/data/held_out.h"
#include "core/data/mixture.h"
#include "core/data/prepare.h"
#include "core/data/token_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr const char* kTwo =
    R"({"prompt":"Once","chosen":"upon a time","rejected":"more"})"
    "\n"
    R"({"chosen":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}],)"
    R"("rejected":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Go away now"}]})"
    "\n";

class PreparePairs : public ::testing::Test {
 protected:
  PreparePairs() { encoder_.emplace(Encoder(plan::Objective::kDpo)); }
  SampleEncoder Encoder(plan::Objective objective) const {
    return SampleEncoder::Create(tokenizer_.get(), plan::Template::kPlain, {.bos = 1, .eos = 2},
                                 620, {.objective = objective})
        .value();
  }
  absl::StatusOr<PrepareSummary> Run(const std::string& contents,
                                     const PrepareOptions& options = {}) {
    EXPECT_TRUE(WriteFileAtomically(input_, contents).ok());
    return Prepare(input_, output_, *encoder_, options);
  }
  std::string Refusal(const std::string& contents, const PrepareOptions& options = {}) {
    return std::string(Run(contents, options).status().message());
  }
  std::vector<formats::TokenSample> Samples(const std::string& path) const {
    std::vector<formats::TokenSample> samples;
    const auto file = formats::TokenFile::Open(path).value();
    EXPECT_TRUE(file->pairs());
    for (int64_t i = 0; i < file->samples(); ++i) {
      samples.push_back(file->Sample(i).value());
    }
    return samples;
  }
  // What is learnt of the tokens from `begin` to `end`, as text.
  std::string Learnt(const formats::TokenSample& sample, size_t begin, size_t end) const {
    Ids ids;
    for (size_t i = begin; i < end; ++i) {
      if (sample.labels[i] != formats::kIgnoredLabel) {
        EXPECT_EQ(sample.labels[i], sample.tokens[i + 1]);
        ids.push_back(sample.labels[i]);
      }
    }
    return tokenizer_->Decode(ids, /*skip_special=*/false);
  }

  const TemporaryFolder folder_;
  const std::string input_ = folder_ / "data.jsonl";
  const std::string output_ = folder_ / "data.tokens";
  const std::unique_ptr<Tokenizer> tokenizer_ =
      Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/llama2.tokenizer.json").value();
  std::optional<SampleEncoder> encoder_;
};

TEST_F(PreparePairs, BothRepliesAreLearntBehindThePrompt) {
  const auto summary = Run(kTwo);
  ASSERT_OK(summary.status());
  EXPECT_EQ(summary->samples, 2);
  const auto samples = Samples(output_);
  ASSERT_EQ(samples.size(), 2u);
  const auto expect = [&](const formats::TokenSample& sample, const std::string& chosen,
                          const std::string& rejected) {
    EXPECT_EQ(Learnt(sample, 0, sample.chosen.tokens), chosen);
    EXPECT_EQ(Learnt(sample, sample.chosen.tokens, sample.tokens.size()), rejected);
    EXPECT_EQ(sample.tokens.front(), 1) << "begin of sequence";
    EXPECT_EQ(sample.tokens[sample.chosen.tokens], 1) << "of the second, too";
  };
  expect(samples[0], "upon a time</s>", "more</s>");
  expect(samples[1], "Hello</s>", "Go away now</s>");
  const auto file = formats::TokenFile::Open(output_).value();
  EXPECT_EQ(file->weight(0), 1) << "a pair counts once";
  const int64_t chosen = samples[0].chosen.tokens;
  const int64_t rejected = std::ssize(samples[0].tokens) - chosen;
  EXPECT_EQ(file->longest(0), std::max(chosen, rejected));
  EXPECT_EQ(summary->longest, std::max(file->longest(0), file->longest(1)));
  EXPECT_EQ(SummaryOf(*file).longest, summary->longest);
}

TEST_F(PreparePairs, WhatIsTooLongIsOfOneReplyOrOfBoth) {
  ASSERT_OK(Run(kTwo).status());
  const auto file = formats::TokenFile::Open(output_).value();
  const int64_t longest = std::max(file->longest(0), file->longest(1));
  const int64_t both = std::max(file->tokens(0), file->tokens(1));
  ASSERT_OK(Run(kTwo, {.max_sequence_tokens = longest, .microbatch_tokens = both}).status());
  EXPECT_THAT(Refusal(kTwo, {.max_sequence_tokens = longest - 1}),
              HasSubstr(fmt::format("the sample has {} tokens, more than max_sequence_tokens {}; "
                                    "raise that",
                                    longest, longest - 1)));
  EXPECT_THAT(Refusal(kTwo, {.microbatch_tokens = both - 1}),
              HasSubstr(fmt::format("the pair has {} tokens, more than microbatch_tokens {}", both,
                                    both - 1)));
  const auto skipped =
      Run(kTwo, {.microbatch_tokens = both - 1, .oversize = plan::OversizePolicy::kSkip});
  ASSERT_OK(skipped.status());
  EXPECT_EQ(skipped->skipped_oversize, 1);
  EXPECT_EQ(skipped->samples, 1);
  const auto cut =
      Run(kTwo, {.microbatch_tokens = both - 1, .oversize = plan::OversizePolicy::kTruncate});
  ASSERT_OK(cut.status());
  EXPECT_EQ(cut->truncated, 1);
  for (const formats::TokenSample& sample : Samples(output_)) {
    EXPECT_LT(std::ssize(sample.tokens), both);
    EXPECT_EQ(sample.labels[sample.chosen.tokens - 1], formats::kIgnoredLabel);
  }
}

TEST_F(PreparePairs, RefusesWhatIsNoPair) {
  EXPECT_THAT(Refusal(R"({"prompt":"a","completion":"b"})"),
              HasSubstr("data.jsonl:1: no 'chosen' and 'rejected' are there, but 'completion', "
                        "'prompt'; train.objective: dpo takes pairs"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","chosen":"b","rejected":"b"})"),
              HasSubstr("data.jsonl:1: chosen and rejected are equal"));
  EXPECT_THAT(Refusal(R"({"prompt":"a","chosen":"b","rejected":"c","weight":2})"),
              HasSubstr("data.jsonl:1: pairs have no weights but 0"));
  encoder_.emplace(Encoder(plan::Objective::kSft));
  EXPECT_THAT(Refusal(R"({"chosen":"b","rejected":"c"})"),
              HasSubstr("this is a pair of replies, which train.objective: dpo takes"));
}

TEST_F(PreparePairs, RepliesMustDifferInTheirTokens) {
  const auto llama3 =
      Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/llama3.tokenizer.json").value();
  encoder_.emplace(SampleEncoder::Create(llama3.get(), plan::Template::kLlama3, {}, 200'000,
                                         {.objective = plan::Objective::kDpo})
                       .value());
  EXPECT_THAT(Refusal(R"({"prompt":"a","chosen":"Yes","rejected":"Yes "})"),
              HasSubstr("data.jsonl:1: chosen and rejected are the same tokens"));
}

TEST_F(PreparePairs, WhatIsEqualOnceCutIsTooLong) {
  const std::string lines = R"({"prompt":"a","chosen":"one two 3","rejected":"one two 4"})"
                            "\n"
                            R"({"prompt":"a","chosen":"one","rejected":"two"})";
  const auto whole = Run(lines);
  ASSERT_OK(whole.status());
  const auto cut = Run(lines, {.max_sequence_tokens = whole->longest - 2,
                               .oversize = plan::OversizePolicy::kTruncate});
  ASSERT_OK(cut.status());
  EXPECT_EQ(cut->skipped_oversize, 1);
  EXPECT_EQ(cut->samples, 1);
}

TEST_F(PreparePairs, StayPairsInAMixtureAndHeldOut) {
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += fmt::format(R"({{"prompt":"{}","chosen":"yes","rejected":"no"}})"
                         "\n",
                         i);
  }
  ASSERT_OK(Run(lines).status());
  const PreparedData data = {.path = output_};
  const auto mixed = Mix({data, data}, /*keeps_sources=*/true, folder_ / "cache");
  ASSERT_OK(mixed.status());
  EXPECT_EQ(formats::TokenFile::Open(mixed->path).value()->source_samples(),
            (std::vector<int64_t>{40, 40}));
  EXPECT_EQ(Samples(mixed->path)[41].chosen, Samples(output_)[1].chosen);
  const auto split = HoldOut(data, 0.25, folder_ / "cache");
  ASSERT_OK(split.status());
  EXPECT_EQ(Samples(split->train.path).size() + Samples(split->validation.path).size(), 40u);
}

TEST_F(PreparePairs, AGivenTokenFileMustBeOfThem) {
  ASSERT_OK(Run(kTwo).status());
  const auto prepared = PrepareCached(output_, folder_ / "cache", *encoder_, {});
  ASSERT_OK(prepared.status());
  EXPECT_EQ(prepared->summary.weighted, 0);
  EXPECT_THAT(PrepareCached(output_, folder_ / "cache", *encoder_, {.microbatch_tokens = 5})
                  .status()
                  .message(),
              HasSubstr("more than microbatch_tokens 5"));
  const SampleEncoder other = Encoder(plan::Objective::kSft);
  EXPECT_THAT(PrepareCached(output_, folder_ / "cache", other, {}).status().message(),
              HasSubstr("has pairs of replies, which train.objective: dpo takes"));
}

}  // namespace
}  // namespace shoal::worker

// Preparation of documents: what is learnt of them, and how they are read.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/base/testing/folder.h"
#include "core/base/testing/status.h"
#include "core/data/prepare.h"
#include "core/data/token_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

constexpr int32_t kBos = 1;
constexpr int32_t kEos = 2;
constexpr const char* kTwo = R"({"text":"Once upon a time"})"
                             "\n"
                             R"({"text":"The end </s>"})"
                             "\n";

class PrepareDocuments : public ::testing::Test {
 protected:
  PrepareDocuments() { encoder_.emplace(Encoder(kEos).value()); }

  absl::StatusOr<SampleEncoder> Encoder(int64_t eos) const {
    return SampleEncoder::Create(tokenizer_.get(), plan::Template::kPlain,
                                 {.bos = kBos, .eos = eos}, 620,
                                 {.objective = plan::Objective::kPretrain});
  }
  // Writes a file of that name, and prepares it.
  absl::StatusOr<PrepareSummary> Run(const std::string& name, const std::string& contents,
                                     const PrepareOptions& options = {}) {
    EXPECT_TRUE(WriteFileAtomically(folder_ / name, contents).ok());
    return Prepare(folder_ / name, output_, *encoder_, options);
  }
  std::vector<formats::TokenSample> Samples() const {
    std::vector<formats::TokenSample> samples;
    const auto file = formats::TokenFile::Open(output_).value();
    for (int64_t i = 0; i < file->samples(); ++i) {
      samples.push_back(file->Sample(i).value());
    }
    return samples;
  }
  // As what it was made of should be.
  Ids Document(const std::string& text) const {
    Ids ids = {kBos};
    const Ids of_text =
        tokenizer_->Encode(text, {.add_special = false, .parse_special = false}).value();
    ids.insert(ids.end(), of_text.begin(), of_text.end());
    ids.push_back(kEos);
    return ids;
  }

  const TemporaryFolder folder_;
  const std::string output_ = folder_ / "data.tokens";
  const std::unique_ptr<Tokenizer> tokenizer_ =
      Tokenizer::Load(std::string(SHOAL_TESTDATA) + "/llama2.tokenizer.json").value();
  std::optional<SampleEncoder> encoder_;
};

TEST_F(PrepareDocuments, EveryTokenIsLearntThroughTheEnd) {
  const auto summary = Run("data.jsonl", kTwo);
  ASSERT_OK(summary.status());
  EXPECT_EQ(summary->documents, 2);
  EXPECT_THAT(Describe(*summary), HasSubstr("2 samples of 2 documents, "));
  const auto samples = Samples();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].tokens, Document("Once upon a time"));
  EXPECT_EQ(samples[1].tokens, Document("The end </s>"));
  EXPECT_EQ(std::ranges::count(samples[1].tokens, kEos), 1) << "</s> in a text is text";
  for (const auto& sample : samples) {
    EXPECT_EQ(sample.labels, ShiftLabels(sample.tokens));
    EXPECT_EQ(sample.targets, std::ssize(sample.tokens) - 1);
  }
}

TEST_F(PrepareDocuments, LongOnesAreCutAndNothingIsLost) {
  const Ids whole = Document("Once upon a time");
  ASSERT_OK(Run("data.jsonl", kTwo, {.max_sequence_tokens = 4}).status());
  Ids learnt = {kBos};
  for (const auto& sample : Samples()) {
    EXPECT_LE(sample.tokens.size(), 4u);
    if (sample.tokens.front() == kBos && learnt.size() > 1) {
      break;  // the other document's
    }
    EXPECT_EQ(sample.tokens.front(), learnt.back());
    learnt.insert(learnt.end(), sample.labels.begin(), sample.labels.end() - 1);
  }
  EXPECT_EQ(learnt, whole);
}

TEST_F(PrepareDocuments, ConcatenatedOnesAreOneText) {
  Ids text = Document("Once upon a time");
  const Ids second = Document("The end </s>");
  text.insert(text.end(), second.begin(), second.end());
  ASSERT_OK(Run("data.jsonl", kTwo,
                {.max_sequence_tokens = 8, .documents = plan::Documents::kConcatenate})
                .status());
  const auto samples = Samples();
  Ids learnt = {kBos};
  for (const auto& sample : samples) {
    EXPECT_EQ(sample.tokens.front(), learnt.back());
    learnt.insert(learnt.end(), sample.labels.begin(), sample.labels.end() - 1);
    EXPECT_TRUE(&sample == &samples.back() || sample.tokens.size() == 8);
  }
  EXPECT_EQ(learnt, text);
  EXPECT_EQ(std::ranges::count(learnt, kBos), 2) << "where the tokenizer puts one";
}

TEST_F(PrepareDocuments, WeightsAreOfAllTheirTokens) {
  const auto summary = Run("data.jsonl",
                           R"({"text":"Once","weight":2})"
                           "\n"
                           R"({"text":"upon","weight":0})"
                           "\n"
                           R"({"text":""})"
                           "\n"
                           R"({"text":"a time"})"
                           "\n",
                           {.documents = plan::Documents::kConcatenate});
  ASSERT_OK(summary.status());
  EXPECT_EQ(summary->documents, 2);
  EXPECT_EQ(summary->skipped_no_target, 2);
  EXPECT_EQ(summary->weighted, 1);
  const auto sample = Samples().at(0);
  Ids expected = Document("Once");
  const size_t first = expected.size();
  const Ids second = Document("a time");
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(sample.tokens, expected);
  const std::span weights(sample.weights);
  EXPECT_THAT(weights.first(first - 1), Each(2.0f));
  EXPECT_THAT(weights.subspan(first - 1), Each(1.0f));
}

TEST_F(PrepareDocuments, AFileOfTextIsOne) {
  const std::string text = "[Once]\n\n  upon a time\n";
  const auto summary = Run("data.txt", text);
  ASSERT_OK(summary.status());
  EXPECT_EQ(Samples().at(0).tokens, Document(text));
  ASSERT_OK(Run("more.txt", "The end").status());
  ASSERT_OK(Prepare(folder_ / "*.txt", output_, *encoder_, {}).status());
  EXPECT_EQ(Samples().size(), 2u) << "of each file one";
  EXPECT_THAT(Run("data.txt", "\xFF").status().message(),
              HasSubstr("data.txt:1: text is not UTF-8 at byte 0"));
  EXPECT_THAT(Run("data.txt", "").status().message(), HasSubstr("the file is empty"));
}

TEST_F(PrepareDocuments, AFolderHasTextsAndLines) {
  std::filesystem::create_directory(folder_ / "corpus");
  ASSERT_OK(WriteFileAtomically(folder_ / "corpus/b.txt", "The end"));
  ASSERT_OK(Run("corpus/a.jsonl", R"({"text":"Once"})").status());
  const auto prepared = PrepareCached(folder_ / "corpus", folder_ / "cache", *encoder_, {});
  ASSERT_OK(prepared.status());
  EXPECT_EQ(prepared->summary.documents, 2);
}

TEST_F(PrepareDocuments, AreMadeAgainForAnotherEnd) {
  ASSERT_OK(Run("data.jsonl", kTwo).status());
  const auto cached = [&](int64_t eos) {
    return PrepareCached(folder_ / "data.jsonl", folder_ / "cache", Encoder(eos).value(), {})
        .value();
  };
  const PreparedData first = cached(kEos);
  EXPECT_TRUE(cached(kEos).from_cache);
  const PreparedData other = cached(kEos + 1);
  EXPECT_FALSE(other.from_cache);
  EXPECT_EQ(formats::TokenFile::Open(other.path).value()->Sample(0)->tokens.back(), kEos + 1);
}

TEST_F(PrepareDocuments, TakeNoOtherForm) {
  EXPECT_THAT(Run("data.jsonl", R"({"prompt":"a","completion":"b"})").status().message(),
              HasSubstr("data.jsonl:1: no 'text' is there, but 'completion', 'prompt'; "
                        "train.objective: pretrain takes documents"));
  ASSERT_OK(
      Run("data.json", R"([{"content":"Once"}])", {.fields = {{"text", "content"}}}).status());
  EXPECT_EQ(Samples().at(0).tokens, Document("Once"));
  EXPECT_THAT(Run("data.jsonl", R"({"text":"","id":3})").status().message(),
              HasSubstr("all its documents are empty"));
}

TEST_F(PrepareDocuments, NeedAnEndOfSequence) {
  encoder_.emplace(Encoder(-1).value());
  EXPECT_THAT(Run("data.jsonl", kTwo).status().message(),
              HasSubstr("data.jsonl:1: a document ends with the end-of-sequence token, and the "
                        "model's folder names none"));
}

}  // namespace
}  // namespace shoal::worker

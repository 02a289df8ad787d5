#include "core/data/documents/cutter.h"

#include <algorithm>
#include <numeric>

#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::worker {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<int32_t>;

struct Sample {
  Ids tokens;
  std::vector<float> weights;
};

std::vector<Sample> Cut(plan::Documents how, int64_t max_tokens, const std::vector<Ids>& documents,
                        const std::vector<float>& weights = {}) {
  std::vector<Sample> samples;
  DocumentCutter cutter(how, max_tokens, [&](auto tokens, auto weight) {
    samples.push_back({{tokens.begin(), tokens.end()}, {weight.begin(), weight.end()}});
    return absl::OkStatus();
  });
  for (size_t i = 0; i < documents.size(); ++i) {
    EXPECT_TRUE(cutter.Add(documents[i], weights.empty() ? 1 : weights[i]).ok());
  }
  EXPECT_TRUE(cutter.Finish().ok());
  return samples;
}

std::vector<Ids> TokensOf(const std::vector<Sample>& samples) {
  std::vector<Ids> tokens;
  std::ranges::transform(samples, std::back_inserter(tokens), &Sample::tokens);
  return tokens;
}

TEST(DocumentCutter, PacksCutEachDocumentByItself) {
  EXPECT_THAT(
      TokensOf(Cut(plan::Documents::kPack, 4, {{1, 2, 3, 4, 5, 6}, {7, 8}, {9, 10, 11, 12}, {13}})),
      ElementsAre(Ids{1, 2, 3, 4}, Ids{4, 5, 6}, Ids{7, 8}, Ids{9, 10, 11, 12}))
      << "a document of one token predicts nothing";
}

TEST(DocumentCutter, ConcatenatedOnesAreOneText) {
  const auto samples =
      Cut(plan::Documents::kConcatenate, 4, {{1, 2, 3}, {4}, {5, 6, 7, 8}, {9}}, {1, 0.5f, 2, 1});
  EXPECT_THAT(TokensOf(samples), ElementsAre(Ids{1, 2, 3, 4}, Ids{4, 5, 6, 7}, Ids{7, 8, 9}));
  EXPECT_THAT(samples[0].weights, ElementsAre(1, 1, 1, 0.5f));
  EXPECT_THAT(samples[1].weights, ElementsAre(0.5f, 2, 2, 2));
  EXPECT_THAT(TokensOf(Cut(plan::Documents::kConcatenate, 3, {{1, 2, 3}})),
              ElementsAre(Ids{1, 2, 3}));
}

// Each token but the first of a text is the label of one position.
TEST(DocumentCutter, EveryTokenIsPredictedOnce) {
  for (const plan::Documents how : {plan::Documents::kPack, plan::Documents::kConcatenate}) {
    for (int64_t max_tokens = 2; max_tokens < 9; ++max_tokens) {
      std::vector<Ids> documents;
      std::vector<int32_t> expected;
      int32_t next = 0;
      for (const size_t length : {5, 1, 8, 2, 7, 16, 3}) {
        Ids& document = documents.emplace_back(length);
        std::iota(document.begin(), document.end(), next);
        const bool first = how == plan::Documents::kPack || next == 0;
        expected.insert(expected.end(), document.begin() + (first ? 1 : 0), document.end());
        next += static_cast<int32_t>(length);
      }
      std::vector<int32_t> predicted;
      for (const Sample& sample : Cut(how, max_tokens, documents)) {
        EXPECT_LE(std::ssize(sample.tokens), max_tokens);
        EXPECT_EQ(sample.weights.size(), sample.tokens.size());
        predicted.insert(predicted.end(), sample.tokens.begin() + 1, sample.tokens.end());
      }
      EXPECT_EQ(predicted, expected) << max_tokens;
    }
  }
}

}  // namespace
}  // namespace shoal::worker

#include "worker/model/generate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/testing/small_model.h"

namespace shoal::worker {
namespace {

using testing_model::FullSpec;
using testing_model::RandomWeights;
using testing_model::SmallSpec;

class GenerateTest : public testing::Test {
 protected:
  explicit GenerateTest(const plan::ModelSpec& spec = FullSpec())
      : model_(*Transformer::Create(spec, {.threads = 2})),
        weights_(RandomWeights(model_->units(), DType::kF32, 1)) {}

  // The cache gives the same as running the whole text again for each token.
  void ExpectTheLargestLogitOfTheWholeText() {
    const auto tokens = Generate(*model_, weights_, prompt_, {.max_new_tokens = 12});
    ASSERT_TRUE(tokens.ok()) << tokens.status().message();
    std::vector<int32_t> text = prompt_;
    for (const int32_t token : *tokens) {
      PackedBatch batch;
      batch.AppendNextToken(text);
      const int32_t last[] = {static_cast<int32_t>(text.size()) - 1};
      const std::vector<float> logits = *ComputeLogits(*model_, batch, last, weights_);
      EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin());
      text.push_back(token);
    }
    EXPECT_EQ(text.size(), 15u);
    EXPECT_EQ(weights_.held(), 0);
  }

  const std::vector<int32_t> prompt_ = {1, 7, 3};
  std::unique_ptr<Transformer> model_;
  MemoryUnitSource weights_;
};

TEST_F(GenerateTest, GreedyIsTheLargestLogitOfTheWholeText) {
  ExpectTheLargestLogitOfTheWholeText();
}

class NormedOutputsGenerateTest : public GenerateTest {
 protected:
  NormedOutputsGenerateTest() : GenerateTest(testing_model::PostNormSpec()) {}
};

TEST_F(NormedOutputsGenerateTest, GreedyIsTheLargestLogitOfTheWholeText) {
  ExpectTheLargestLogitOfTheWholeText();
}

class CappedGenerateTest : public GenerateTest {
 protected:
  CappedGenerateTest() : GenerateTest(testing_model::SandwichSpec()) {}
};

TEST_F(CappedGenerateTest, GreedyIsTheLargestLogitOfTheWholeText) {
  ExpectTheLargestLogitOfTheWholeText();
}

TEST_F(GenerateTest, TheSeedDecides) {
  const auto sample = [&](uint64_t seed) {
    return *Generate(*model_, weights_, prompt_,
                     {.max_new_tokens = 30, .temperature = 1.5, .seed = seed});
  };
  EXPECT_EQ(sample(1), sample(1));
  EXPECT_NE(sample(1), sample(2));
}

TEST_F(GenerateTest, TopKAndTopPLeaveOutTheUnlikely) {
  PackedBatch batch;
  batch.AppendNextToken(prompt_);
  const int32_t last[] = {static_cast<int32_t>(prompt_.size()) - 1};
  const std::vector<float> logits = *ComputeLogits(*model_, batch, last, weights_);
  std::vector<std::pair<double, int32_t>> by_probability;
  double sum = 0;
  for (size_t id = 0; id < logits.size(); ++id) {
    const double weight = std::exp(static_cast<double>(logits[id]) / 2);
    sum += weight;
    by_probability.emplace_back(weight, static_cast<int32_t>(id));
  }
  std::ranges::sort(by_probability, std::greater());
  const auto drawn = [&](int64_t top_k, double top_p) {
    std::set<int32_t> ids;
    for (uint64_t seed = 0; seed < 1000; ++seed) {
      ids.insert(
          Generate(
              *model_, weights_, prompt_,
              {.max_new_tokens = 1, .temperature = 2, .top_k = top_k, .top_p = top_p, .seed = seed})
              ->front());
    }
    return ids;
  };
  const auto likeliest = [&](size_t count) {
    std::set<int32_t> ids;
    for (size_t i = 0; i < count; ++i) {
      ids.insert(by_probability[i].second);
    }
    return ids;
  };
  EXPECT_EQ(drawn(1, 1), likeliest(1));
  EXPECT_EQ(drawn(3, 1), likeliest(3));
  const double three =
      (by_probability[0].first + by_probability[1].first + 0.5 * by_probability[2].first) / sum;
  EXPECT_EQ(drawn(0, three), likeliest(3));
  EXPECT_GT(drawn(0, 1).size(), 10U);
}

TEST_F(GenerateTest, StopsAndTells) {
  const std::vector<int32_t> all = *Generate(*model_, weights_, prompt_, {.max_new_tokens = 5});
  std::vector<int32_t> told;
  const std::vector<int32_t> stopped =
      *Generate(*model_, weights_, prompt_,
                {.max_new_tokens = 5, .stop_tokens = {all[2]}, .on_token = [&](int32_t token) {
                   told.push_back(token);
                   return true;
                 }});
  EXPECT_EQ(stopped, told);
  EXPECT_EQ(stopped.back(), all[2]);
  EXPECT_LE(stopped.size(), 3u);
  EXPECT_EQ(Generate(*model_, weights_, prompt_,
                     {.max_new_tokens = 5, .on_token = [](int32_t) { return false; }})
                ->size(),
            1U);
}

TEST_F(GenerateTest, EndsAtTheModelsLength) {
  const std::vector<int32_t> prompt(static_cast<size_t>(model_->spec().max_positions) - 4, 1);
  EXPECT_EQ(Generate(*model_, weights_, prompt, {.max_new_tokens = 100})->size(), 4u);
  const std::vector<int32_t> full(static_cast<size_t>(model_->spec().max_positions), 1);
  EXPECT_EQ(Generate(*model_, weights_, full, {}).status().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(GenerateTest, RefusesBadPrompts) {
  EXPECT_EQ(Generate(*model_, weights_, {}, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const int32_t outside[] = {99};
  EXPECT_EQ(Generate(*model_, weights_, outside, {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace shoal::worker

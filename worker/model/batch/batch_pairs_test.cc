#include "worker/model/batch/batch_pairs.h"

#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/model/runner.h"
#include "worker/model/testing/small_model.h"

namespace shoal::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using testing_model::FullSpec;
using testing_model::RandomPairs;
using testing_model::RandomWeights;

constexpr int32_t kNone = formats::kIgnoredLabel;

// Of a pair with 2 and 1 targets.
PackedBatch OnePair() {
  PackedBatch batch = {.preference = plan::PreferenceOptions{.beta = 0.5}};
  formats::TokenSample sample = {.tokens = {1, 2, 3, 1, 4},
                                 .labels = {2, 3, kNone, 4, kNone},
                                 .targets = 3,
                                 .chosen = {.tokens = 3, .targets = 2}};
  batch.Append(sample);
  return batch;
}

TEST(BatchPairs, WeighsTheRowsOfEachReplyAlike) {
  PackedBatch batch = OnePair();
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 3, 5));
  ASSERT_TRUE(Validate(batch, 5).ok());
  batch.references = {-2, -3};
  BatchPairs pairs(batch);
  const std::vector<float> log_probabilities = {-0.5, -0.25, -4};
  pairs.Compare(log_probabilities);
  EXPECT_THAT(pairs.sums(), ElementsAre(-0.75, -4));
  const double margin = 0.5 * ((-0.75 + 2) - (-4 + 3));
  EXPECT_DOUBLE_EQ(pairs.loss_sum(), std::log1p(std::exp(-margin)));
  const auto weight = static_cast<float>(0.5 / (1 + std::exp(margin)));
  EXPECT_THAT(pairs.weights(), ElementsAre(FloatNear(weight, 1e-7f), FloatNear(weight, 1e-7f),
                                           FloatNear(-weight, 1e-7f)));
  pairs.Compare(log_probabilities);  // again, as where a validation follows
  EXPECT_EQ(pairs.weights().size(), 3u);
}

TEST(BatchPairs, AreTwoSequencesEachWithTargets) {
  PackedBatch batch = OnePair();
  batch.labels[3] = kNone;
  EXPECT_THAT(Validate(batch, 5).message(), HasSubstr("sequence 1 has no target"));
  batch = OnePair();
  batch.references = {1};
  EXPECT_THAT(Validate(batch, 5).message(), HasSubstr("2 sequences and 1 references"));
  batch = OnePair();
  const std::vector<int32_t> more = {1, 2};
  batch.AppendNextToken(more);
  EXPECT_THAT(Validate(batch, 5).message(), HasSubstr("3 sequences"));
}

// What a pair adds does not follow from what it is packed with.
TEST(BatchPairs, AreTheSamePackedInAnyOrder) {
  const plan::ModelSpec spec = FullSpec();
  const auto model = *Transformer::Create(spec, {.threads = 2});
  MemoryUnitSource weights = RandomWeights(model->units(), DType::kF32, 5);
  const PackedBatch pairs =
      RandomPairs(spec, {9, 23, 40, 7, 90, 3}, 6, plan::PreferenceLoss::kSigmoid);
  const auto run = [&](const std::vector<std::vector<int64_t>>& packs, MemoryGradientSink& sink) {
    MicrobatchResult all = {.log_probabilities = std::vector<double>(6)};
    for (const std::vector<int64_t>& pack : packs) {
      PackedBatch batch = {.preference = pairs.preference};
      for (const int64_t pair : pack) {
        for (const auto s : {static_cast<size_t>(2 * pair), static_cast<size_t>(2 * pair + 1)}) {
          const auto begin = static_cast<size_t>(pairs.cu_seqlens[s]);
          const auto count = static_cast<size_t>(pairs.cu_seqlens[s + 1]) - begin;
          batch.Append(std::span(pairs.tokens).subspan(begin, count),
                       std::span(pairs.labels).subspan(begin, count));
          batch.references.push_back(pairs.references[s]);
        }
      }
      const MicrobatchResult ran = RunMicrobatch(*model, batch, 0.5, weights, sink).value();
      all.loss_sum += ran.loss_sum;
      for (size_t i = 0; i < ran.log_probabilities.size(); ++i) {
        all.log_probabilities[static_cast<size_t>(2 * pack[i / 2]) + i % 2] =
            ran.log_probabilities[i];
      }
    }
    return all;
  };
  MemoryGradientSink one(model->units());
  MemoryGradientSink other(model->units());
  const MicrobatchResult a = run({{0, 1, 2}}, one);
  const MicrobatchResult b = run({{2, 0}, {1}}, other);
  EXPECT_NEAR(a.loss_sum / b.loss_sum, 1, 1e-6);
  for (size_t s = 0; s < 6; ++s) {
    EXPECT_NEAR(a.log_probabilities[s] / b.log_probabilities[s], 1, 1e-6);
  }
  for (const plan::UnitSpec& unit : model->units()) {
    double error = 0;
    double length = 0;
    for (size_t i = 0; i < one.gradient(unit.index).size(); ++i) {
      length = std::hypot(length, one.gradient(unit.index)[i]);
      error = std::max<double>(
          error, std::abs(one.gradient(unit.index)[i] - other.gradient(unit.index)[i]));
    }
    EXPECT_LT(error, 1e-5 * length) << unit.name;
  }
}

}  // namespace
}  // namespace shoal::worker

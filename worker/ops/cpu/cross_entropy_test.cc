#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using oracle::CpuFixture;
using oracle::Doubles;
using oracle::Tensor;

constexpr float kWeights[] = {1.0f, 0.0f, -0.75f, 2.5f, 1.0f};

// As many as wanted, some of them 0 or below it.
std::vector<float> Weights(size_t count) {
  std::vector<float> weights(count);
  for (size_t i = 0; i < count; ++i) {
    weights[i] = kWeights[i % std::size(kWeights)];
  }
  return weights;
}

class AgainstOracle : public testing::TestWithParam<std::tuple<DType, float>> {};

TEST_P(AgainstOracle, LossAndGradientAgree) {
  constexpr int64_t kRows = 20, kCount = 17, kVocabulary = 101;
  const auto [dtype, softcap] = GetParam();
  Random random(15);
  CpuFixture cpu;
  Tensor logits = Tensor::Normal(DType::kF32, kRows, kVocabulary, random, 4.0);
  std::vector<int32_t> labels(kCount);
  for (int32_t& label : labels) {
    label = static_cast<int32_t>(random.Below(kVocabulary));
  }
  const std::vector<float> weights = Weights(kCount);
  const Doubles before = logits.doubles();
  const auto expected = [&, cap = softcap](Doubles at) {
    for (double& logit : at) {
      logit = oracle::SoftCap(logit, static_cast<double>(cap));
    }
    return oracle::CrossEntropy(at, labels, weights, kVocabulary);
  };
  Tensor d_logits(dtype, kRows, kVocabulary, 9.0);
  double loss = 100;
  cpu.ops->SoftmaxCrossEntropy(logits.view(), {labels.data(), weights.data(), kCount}, 0.25f,
                               softcap, d_logits.view(), {&loss});
  EXPECT_NEAR(loss - 100, expected(before), 1e-4);
  oracle::ExpectGradient([&](const Doubles& at) { return Doubles{expected(at)}; }, before, {0.25},
                         d_logits.doubles(), oracle::Tolerance(dtype), "d_logits");
  const Doubles gradients = d_logits.doubles();
  EXPECT_EQ(gradients.back(), 0.0);
  for (size_t i = 0; i < kCount * kVocabulary; ++i) {
    EXPECT_EQ(gradients[i] == 0, weights[i / kVocabulary] == 0) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(SoftmaxCrossEntropy, AgainstOracle,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(0.0f, 3.0f)));

TEST(SoftmaxCrossEntropy, InPlaceAndWithoutGradientGiveTheSameLoss) {
  Random random(16);
  CpuFixture cpu;
  Tensor first = Tensor::Normal(DType::kF32, 8, 50, random);
  Tensor second = first;
  Tensor third = first;
  Tensor apart(DType::kF32, 8, 50);
  const std::vector<int32_t> labels = {0, 1, 2, 3, 4, 5, 6, 49};
  const std::vector<float> weights = Weights(8);
  const LabelledRows rows{labels.data(), weights.data(), 8};
  double losses[3] = {};
  cpu.ops->SoftmaxCrossEntropy(first.view(), rows, 1.0f, 0.0f, apart.view(), {&losses[0]});
  cpu.ops->SoftmaxCrossEntropy(second.view(), rows, 1.0f, 0.0f, second.view(), {&losses[1]});
  cpu.ops->SoftmaxCrossEntropy(third.view(), rows, 1.0f, 0.0f, Matrix(), {&losses[2]});
  EXPECT_TRUE(apart.SameBits(second));
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

// What a row weighs and what all are scaled by are one factor.
TEST(SoftmaxCrossEntropy, EqualWeightsGiveTheBitsOfTheirScale) {
  Random random(17);
  CpuFixture cpu;
  const Tensor logits = Tensor::Normal(DType::kF32, 8, 50, random);
  const std::vector<int32_t> labels = {0, 1, 2, 3, 4, 5, 6, 49};
  const auto run = [&](float weight, float scale, double& loss) {
    Tensor at = logits;
    const std::vector<float> weights(8, weight);
    cpu.ops->SoftmaxCrossEntropy(at.view(), {labels.data(), weights.data(), 8}, scale, 0.0f,
                                 at.view(), {&loss});
    return at;
  };
  double losses[2] = {};
  EXPECT_TRUE(run(1.0f, 0.3f, losses[0]).SameBits(run(0.3f, 1.0f, losses[1])));
  EXPECT_NEAR(losses[1], losses[0] * 0.3f, 1e-12);
}

TEST(SoftmaxCrossEntropy, GivesLogProbabilitiesWhateverRowsWeigh) {
  constexpr int64_t kVocabulary = 50;
  Random random(18);
  CpuFixture cpu;
  Tensor logits = Tensor::Normal(DType::kF32, 5, kVocabulary, random, 2.0);
  const Doubles before = logits.doubles();
  const std::vector<int32_t> labels = {0, 7, 49, 7};
  std::vector<float> log_probabilities(5, 9.0f);
  double loss = 0;
  cpu.ops->SoftmaxCrossEntropy(logits.view(), {labels.data(), kWeights, 4}, 1.0f, 0.0f, Matrix(),
                               {&loss, log_probabilities.data()});
  for (size_t row = 0; row < labels.size(); ++row) {
    const Doubles alone(before.begin() + static_cast<ptrdiff_t>(row) * kVocabulary,
                        before.begin() + static_cast<ptrdiff_t>(row + 1) * kVocabulary);
    const float one = 1;
    EXPECT_NEAR(static_cast<double>(log_probabilities[row]),
                -oracle::CrossEntropy(alone, {&labels[row], 1}, {&one, 1}, kVocabulary), 1e-5);
  }
  EXPECT_EQ(log_probabilities[4], 9.0f);
}

TEST(SoftmaxCrossEntropy, ShowsWhatIsNotFinite) {
  CpuFixture cpu;
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Tensor logits(DType::kF32, 1, 40);
    logits.Set(7, bad);
    const int32_t label = 3;
    double loss = 0;
    const float one = 1;
    cpu.ops->SoftmaxCrossEntropy(logits.view(), {&label, &one, 1}, 1.0f, 0.0f, Matrix(), {&loss});
    EXPECT_FALSE(std::isfinite(loss));
  }
}

}  // namespace
}  // namespace shoal::worker

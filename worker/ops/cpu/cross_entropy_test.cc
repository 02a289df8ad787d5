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
  const Doubles before = logits.doubles();
  const auto expected = [&, cap = softcap](Doubles at) {
    for (double& logit : at) {
      logit = oracle::SoftCap(logit, static_cast<double>(cap));
    }
    return oracle::CrossEntropy(at, labels, kVocabulary);
  };
  Tensor d_logits(dtype, kRows, kVocabulary, 9.0);
  double loss = 100;
  cpu.ops->SoftmaxCrossEntropy(logits.view(), labels.data(), kCount, 0.25f, softcap,
                               d_logits.view(), &loss);
  EXPECT_NEAR(loss - 100, expected(before), 1e-4);
  oracle::ExpectGradient([&](const Doubles& at) { return Doubles{expected(at)}; }, before, {0.25},
                         d_logits.doubles(), oracle::Tolerance(dtype), "d_logits");
  EXPECT_EQ(d_logits.doubles().back(), 0.0);
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
  double losses[3] = {};
  cpu.ops->SoftmaxCrossEntropy(first.view(), labels.data(), 8, 1.0f, 0.0f, apart.view(),
                               &losses[0]);
  cpu.ops->SoftmaxCrossEntropy(second.view(), labels.data(), 8, 1.0f, 0.0f, second.view(),
                               &losses[1]);
  cpu.ops->SoftmaxCrossEntropy(third.view(), labels.data(), 8, 1.0f, 0.0f, Matrix(), &losses[2]);
  EXPECT_TRUE(apart.SameBits(second));
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_EQ(losses[0], losses[2]);
}

TEST(SoftmaxCrossEntropy, ShowsWhatIsNotFinite) {
  CpuFixture cpu;
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Tensor logits(DType::kF32, 1, 40);
    logits.Set(7, bad);
    const int32_t label = 3;
    double loss = 0;
    cpu.ops->SoftmaxCrossEntropy(logits.view(), &label, 1, 1.0f, 0.0f, Matrix(), &loss);
    EXPECT_FALSE(std::isfinite(loss));
  }
}

}  // namespace
}  // namespace shoal::worker

#include "worker/ops/cpu/rms_norm.h"

#include <cmath>

#include "gtest/gtest.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using oracle::CpuFixture;
using oracle::Doubles;
using oracle::Tensor;

constexpr int64_t kRows = 150;  // more than two partial sums of the weight gradient
constexpr int64_t kColumns = 40;
constexpr double kEpsilon = 1e-5;

class RmsNorm : public testing::TestWithParam<DType> {};

TEST_P(RmsNorm, ForwardAndBackwardAgreeWithTheOracle) {
  const DType dtype = GetParam();
  Random random(5);
  CpuFixture cpu;
  Tensor x = Tensor::Normal(dtype, kRows, kColumns, random);
  Tensor weight = Tensor::Normal(dtype, 1, kColumns, random);
  Tensor d_y = Tensor::Normal(dtype, kRows, kColumns, random);
  Tensor residual = Tensor::Normal(dtype, kRows, kColumns, random);
  Tensor y(dtype, kRows, kColumns), d_x(dtype, kRows, kColumns),
      d_weight(DType::kF32, 1, kColumns, 0.5);
  std::vector<float> inverse_rms(kRows);

  cpu.ops->RmsNormForward(x.view(), weight.vector(), kEpsilon, y.view(), inverse_rms.data());
  const double tolerance = oracle::Tolerance(dtype);
  oracle::ExpectClose(y.doubles(), oracle::RmsNorm(x.doubles(), weight.doubles(), kEpsilon),
                      tolerance, "y");

  cpu.ops->RmsNormBackwardInput(d_y.view(), x.view(), weight.vector(), inverse_rms.data(),
                                ConstMatrix(), d_x.view());
  oracle::ExpectGradient(
      [&](const Doubles& at) { return oracle::RmsNorm(at, weight.doubles(), kEpsilon); },
      x.doubles(), d_y.doubles(), d_x.doubles(), tolerance, "d_x");

  cpu.ops->RmsNormBackwardWeight(d_y.view(), x.view(), inverse_rms.data(), d_weight.f32());
  Doubles added = d_weight.doubles();
  for (double& value : added) {
    value -= 0.5;  // it was ADDED
  }
  oracle::ExpectGradient(
      [&](const Doubles& at) { return oracle::RmsNorm(x.doubles(), at, kEpsilon); },
      weight.doubles(), d_y.doubles(), added, tolerance, "d_weight");

  const Doubles without = d_x.doubles();
  cpu.ops->RmsNormBackwardInput(d_y.view(), x.view(), weight.vector(), inverse_rms.data(),
                                residual.view(), d_x.view());
  Doubles expected = residual.doubles();
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] += without[i];
  }
  oracle::ExpectClose(d_x.doubles(), expected, tolerance, "d_x with residual");
}

TEST_P(RmsNorm, OfASumIsTheNormOfTheSum) {
  Random random(6);
  CpuFixture cpu;
  const DType dtype = GetParam();
  Tensor a = Tensor::Normal(dtype, 7, kColumns, random);
  Tensor b = Tensor::Normal(dtype, 7, kColumns, random);
  Tensor weight = Tensor::Normal(dtype, 1, kColumns, random);
  Tensor sum(dtype, 7, kColumns), sum_again(dtype, 7, kColumns), y(dtype, 7, kColumns),
      y_again(dtype, 7, kColumns);
  std::vector<float> rms(7), rms_again(7);
  cpu.ops->AddRmsNormForward(a.view(), b.view(), weight.vector(), kEpsilon, sum.view(), y.view(),
                             rms.data());
  cpu.ops->Add(a.view(), b.view(), sum_again.view());
  cpu.ops->RmsNormForward(sum_again.view(), weight.vector(), kEpsilon, y_again.view(),
                          rms_again.data());
  EXPECT_TRUE(sum.SameBits(sum_again));
  EXPECT_TRUE(y.SameBits(y_again));
  EXPECT_EQ(rms, rms_again);
}

INSTANTIATE_TEST_SUITE_P(Types, RmsNorm, testing::Values(DType::kF32, DType::kBF16));

}  // namespace
}  // namespace shoal::worker

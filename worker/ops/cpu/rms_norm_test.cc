#include <cmath>

#include "core/plan/memory/norm_partials.h"
#include "gtest/gtest.h"
#include "worker/ops/cpu/cpu_kernels.h"
#include "worker/ops/testing/oracle.h"

namespace shoal::worker {
namespace {

using oracle::CpuFixture;
using oracle::Doubles;
using oracle::Tensor;

constexpr int64_t kRows = 150;  // not a multiple of a partial sum's
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
      d_weight(DType::kF32, 1, kColumns, 0.5),
      d_weights(DType::kF32, plan::NormPartials(kRows), kColumns, 7.0);
  std::vector<float> inverse_rms(kRows);

  cpu.ops->RmsNormForward(x.view(), weight.vector(), kEpsilon, {}, y.view(), inverse_rms.data());
  const double tolerance = oracle::Tolerance(dtype);
  oracle::ExpectClose(y.doubles(), oracle::RmsNorm(x.doubles(), weight.doubles(), kEpsilon),
                      tolerance, "y");
  Tensor y_added = residual;
  cpu.ops->RmsNormForward(x.view(), weight.vector(), kEpsilon, y_added.view(), y_added.view(),
                          inverse_rms.data());
  Doubles sum = residual.doubles();
  for (size_t i = 0; i < sum.size(); ++i) {
    sum[i] += y.doubles()[i];
  }
  oracle::ExpectClose(y_added.doubles(), sum, tolerance, "y with residual");

  cpu.ops->RmsNormBackward(d_y.view(), x.view(), weight.vector(), inverse_rms.data(), ConstMatrix(),
                           d_x.view(), d_weights.view());
  oracle::ExpectGradient(
      [&](const Doubles& at) { return oracle::RmsNorm(at, weight.doubles(), kEpsilon); },
      x.doubles(), d_y.doubles(), d_x.doubles(), tolerance, "d_x");

  cpu.ops->AddColumnSums(d_weights.view(), d_weight.f32());
  Doubles added = d_weight.doubles();
  for (double& value : added) {
    value -= 0.5;  // it was ADDED
  }
  oracle::ExpectGradient(
      [&](const Doubles& at) { return oracle::RmsNorm(x.doubles(), at, kEpsilon); },
      weight.doubles(), d_y.doubles(), added, tolerance, "d_weight");

  const Doubles without = d_x.doubles();
  const Doubles partials = d_weights.doubles();
  // Overwrites d_y, from which the weight's gradient is computed too.
  cpu.ops->RmsNormBackward(d_y.view(), x.view(), weight.vector(), inverse_rms.data(),
                           residual.view(), d_y.view(), d_weights.view());
  EXPECT_EQ(d_weights.doubles(), partials);
  Doubles expected = residual.doubles();
  for (size_t i = 0; i < expected.size(); ++i) {
    expected[i] += without[i];
  }
  oracle::ExpectClose(d_y.doubles(), expected, tolerance, "d_x with residual");
}

TEST_P(RmsNorm, AddsTheOffsetToTheWeight) {
  const DType dtype = GetParam();
  Random random(7);
  CpuFixture cpu;
  Tensor x = Tensor::Normal(dtype, kRows, kColumns, random);
  Tensor weight = Tensor::Normal(dtype, 1, kColumns, random);
  Tensor d_y = Tensor::Normal(dtype, kRows, kColumns, random);
  Tensor y(dtype, kRows, kColumns), d_x(dtype, kRows, kColumns), d_weight(DType::kF32, 1, kColumns),
      d_weights(DType::kF32, plan::NormPartials(kRows), kColumns);
  std::vector<float> inverse_rms(kRows);
  const NormWeight norm(weight.vector(), 1.0f);
  const auto expected = [](const Doubles& at, Doubles weights) {
    for (double& each : weights) {
      each += 1;
    }
    return oracle::RmsNorm(at, weights, kEpsilon);
  };

  cpu.ops->RmsNormForward(x.view(), norm, kEpsilon, {}, y.view(), inverse_rms.data());
  const double tolerance = oracle::Tolerance(dtype);
  oracle::ExpectClose(y.doubles(), expected(x.doubles(), weight.doubles()), tolerance, "y");
  cpu.ops->RmsNormBackward(d_y.view(), x.view(), norm, inverse_rms.data(), {}, d_x.view(),
                           d_weights.view());
  cpu.ops->AddColumnSums(d_weights.view(), d_weight.f32());
  oracle::ExpectGradient([&](const Doubles& at) { return expected(at, weight.doubles()); },
                         x.doubles(), d_y.doubles(), d_x.doubles(), tolerance, "d_x");
  oracle::ExpectGradient([&](const Doubles& at) { return expected(x.doubles(), at); },
                         weight.doubles(), d_y.doubles(), d_weight.doubles(), tolerance,
                         "d_weight");
}

// The same bits as if each part of a row were a row.
TEST_P(RmsNorm, NormsPartsOfARowByThemselves) {
  constexpr int64_t kParts = 4;
  constexpr int64_t kPart = kColumns / kParts;
  const DType dtype = GetParam();
  Random random(6);
  CpuFixture cpu;
  Tensor x = Tensor::Normal(dtype, kRows, kColumns, random);
  Tensor weight = Tensor::Normal(dtype, 1, kPart, random);
  Tensor d_y = Tensor::Normal(dtype, kRows, kColumns, random);
  Tensor y(dtype, kRows, kColumns), d_x(dtype, kRows, kColumns),
      d_weights(DType::kF32, plan::NormPartials(kRows), kPart);
  std::vector<float> inverse_rms(kRows * kParts);
  const auto as_rows = [](Matrix m) {
    return Matrix::Dense(m.data, m.dtype, m.rows * kParts, kPart);
  };
  Tensor y_of_rows(dtype, kRows, kColumns), d_x_of_rows(dtype, kRows, kColumns),
      d_weights_of_rows(DType::kF32, plan::NormPartials(kRows * kParts), kPart);
  std::vector<float> inverse_rms_of_rows(kRows * kParts);

  cpu.ops->RmsNormForward(x.view(), weight.vector(), kEpsilon, {}, y.view(), inverse_rms.data());
  cpu.ops->RmsNormForward(as_rows(x.view()), weight.vector(), kEpsilon, {},
                          as_rows(y_of_rows.view()), inverse_rms_of_rows.data());
  EXPECT_EQ(y.doubles(), y_of_rows.doubles());
  EXPECT_EQ(inverse_rms, inverse_rms_of_rows);

  cpu.ops->RmsNormBackward(d_y.view(), x.view(), weight.vector(), inverse_rms.data(), ConstMatrix(),
                           d_x.view(), d_weights.view());
  cpu.ops->RmsNormBackward(as_rows(d_y.view()), as_rows(x.view()), weight.vector(),
                           inverse_rms.data(), ConstMatrix(), as_rows(d_x_of_rows.view()),
                           d_weights_of_rows.view());
  EXPECT_EQ(d_x.doubles(), d_x_of_rows.doubles());
  Tensor sums(DType::kF32, 1, kPart), sums_of_rows(DType::kF32, 1, kPart);
  cpu.ops->AddColumnSums(d_weights.view(), sums.f32());
  cpu.ops->AddColumnSums(d_weights_of_rows.view(), sums_of_rows.f32());
  oracle::ExpectClose(sums.doubles(), sums_of_rows.doubles(), 1e-5, "d_weight");
}

INSTANTIATE_TEST_SUITE_P(Types, RmsNorm, testing::Values(DType::kF32, DType::kBF16));

}  // namespace
}  // namespace shoal::worker

#include "server/store/accumulate.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

// Values over many magnitudes, some subnormal, some zero of either sign.
std::vector<float> Gradients(uint64_t seed, size_t count) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) {
    value = static_cast<float>(random.Normal() *
                               std::pow(2.0, static_cast<double>(random.Between(-60, 12))));
  }
  for (size_t i = 0; i < count; i += 97) {
    values[i] = i % 2 == 0 ? 0.0f : -0.0f;
  }
  return values;
}

std::vector<BFloat16> ToBFloat16(const std::vector<float>& values) {
  std::vector<BFloat16> result(values.size());
  Convert(values, result.data());
  return result;
}

class Kernels : public testing::TestWithParam<KernelWidth> {
 protected:
  const AccumulateKernels& kernels_ = GetAccumulateKernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Widths, Kernels, testing::ValuesIn(AvailableKernelWidths()),
                         [](const auto& info) {
                           return info.param == KernelWidth::kWide ? "wide" : "baseline";
                         });

TEST_P(Kernels, FloatSumsAreIeeeSums) {
  for (const size_t count : {1u, 15u, 16u, 33u, 1000u}) {
    std::vector<float> sum(count);
    std::vector<float> expected(count);
    for (uint64_t push = 0; push < 4; ++push) {
      const std::vector<float> f32 = Gradients(push, count);
      const std::vector<BFloat16> bf16 = ToBFloat16(Gradients(push + 10, count));
      const auto n = static_cast<int64_t>(count);
      if (push == 0) {
        kernels_.set_f32(f32.data(), sum.data(), n);
      } else {
        kernels_.add_f32(f32.data(), sum.data(), n);
      }
      kernels_.add_bf16(bf16.data(), sum.data(), n);
      for (size_t i = 0; i < count; ++i) {
        expected[i] += f32[i];
        expected[i] += static_cast<float>(bf16[i]);
      }
    }
    EXPECT_EQ(std::memcmp(sum.data(), expected.data(), count * sizeof(float)), 0);
  }
}

TEST_P(Kernels, SetNormalisesNegativeZeroLikeAdditionToZero) {
  const float negative_zero = -0.0f;
  float sum = 1.0f;
  kernels_.set_f32(&negative_zero, &sum, 1);
  EXPECT_FALSE(std::signbit(sum));
  const BFloat16 bf16_negative_zero(-0.0f);
  kernels_.set_bf16(&bf16_negative_zero, &sum, 1);
  EXPECT_FALSE(std::signbit(sum));
}

TEST_P(Kernels, ExactRoundsToNearestEven) {
  const std::vector<float> values = Gradients(7, 5000);
  std::vector<int64_t> sum(values.size());
  EXPECT_EQ(kernels_.add_exact_f32(values.data(), sum.data(), static_cast<int64_t>(values.size())),
            0);
  for (size_t i = 0; i < values.size(); ++i) {
    // A long double holds the product exactly.
    EXPECT_EQ(sum[i],
              static_cast<int64_t>(std::nearbyintl(static_cast<long double>(values[i]) * 0x1p40L)))
        << values[i];
  }
  const float ties[] = {0x1p-41f, 0x3p-41f, -0x1p-41f, -0x3p-41f, 0x5p-41f};
  std::vector<int64_t> tie_sum(5);
  kernels_.add_exact_f32(ties, tie_sum.data(), 5);
  EXPECT_EQ(tie_sum, (std::vector<int64_t>{0, 2, 0, -2, 2}));
}

TEST_P(Kernels, ExactSumsDoNotDependOnOrder) {
  constexpr size_t kCount = 333;
  constexpr size_t kPushes = 40;
  std::vector<std::vector<float>> pushes;
  for (size_t push = 0; push < kPushes; ++push) {
    pushes.push_back(Gradients(push + 100, kCount));
  }
  std::vector<int64_t> first;
  Random random(3);
  for (int round = 0; round < 5; ++round) {
    std::vector<int64_t> sum(kCount);
    for (const std::vector<float>& push : pushes) {
      kernels_.add_exact_f32(push.data(), sum.data(), kCount);
    }
    if (first.empty()) {
      first = sum;
    }
    EXPECT_EQ(sum, first);
    random.Shuffle(pushes);
  }
}

TEST_P(Kernels, ExactRefusesWhatItCannotHold) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1.0f,    std::nanf(""),  infinity, -infinity,
                                     0x1p20f, 0x1.000002p20f, -0x1p21f, 1.0f};
  std::vector<int64_t> sum(values.size());
  EXPECT_EQ(kernels_.add_exact_f32(values.data(), sum.data(), static_cast<int64_t>(values.size())),
            5);
  const int64_t one = int64_t{1} << kExactFractionBits;
  EXPECT_EQ(sum, (std::vector<int64_t>{one, 0, 0, 0, one << 20, 0, 0, one}));

  // A sum that reaches the limit stays where it is and reports it.
  std::vector<int64_t> full = {kExactMaxSum - 1, -(kExactMaxSum - 1), kExactMaxSum - 1};
  const float step[] = {1.0f, -1.0f, -1.0f};
  EXPECT_EQ(kernels_.add_exact_f32(step, full.data(), 3), 2);
  EXPECT_EQ(full,
            (std::vector<int64_t>{kExactMaxSum - 1, -(kExactMaxSum - 1), kExactMaxSum - 1 - one}));
}

TEST_P(Kernels, StatisticsAgreeWithDoubleReference) {
  for (const size_t count : {1u, 16u, 100u, 8192u}) {
    std::vector<float> values = Gradients(count, count);
    double expected = 0;
    for (const float value : values) {
      expected += static_cast<double>(value) * static_cast<double>(value);
    }
    const GradientStatistics statistics =
        kernels_.statistics(values.data(), static_cast<int64_t>(count));
    EXPECT_NEAR(statistics.sum_of_squares, expected, expected * 1e-13);
    EXPECT_EQ(statistics.non_finite, 0);
    values[count / 2] = std::nanf("");
    values[0] = -std::numeric_limits<float>::infinity();
    EXPECT_EQ(kernels_.statistics(values.data(), static_cast<int64_t>(count)).non_finite,
              count == 1 ? 1 : 2);
  }
}

// The widths must agree in every bit, on any length.
TEST(KernelWidths, GiveTheSameBits) {
  for (const KernelWidth width : AvailableKernelWidths()) {
    const AccumulateKernels& wide = GetAccumulateKernels(width);
    const AccumulateKernels& baseline = GetAccumulateKernels(KernelWidth::kBaseline);
    for (const int64_t count : {1, 7, 31, 64, 777, 8192}) {
      const auto size = static_cast<size_t>(count);
      const std::vector<float> f32 = Gradients(static_cast<uint64_t>(count), size);
      const std::vector<BFloat16> bf16 = ToBFloat16(f32);
      std::vector<int64_t> sum_a(size, 12345), sum_b(size, 12345);
      EXPECT_EQ(wide.add_exact_f32(f32.data(), sum_a.data(), count),
                baseline.add_exact_f32(f32.data(), sum_b.data(), count));
      EXPECT_EQ(wide.add_exact_bf16(bf16.data(), sum_a.data(), count),
                baseline.add_exact_bf16(bf16.data(), sum_b.data(), count));
      EXPECT_EQ(sum_a, sum_b);
      std::vector<float> float_a(size), float_b(size);
      wide.exact_to_float(sum_a.data(), float_a.data(), count);
      baseline.exact_to_float(sum_b.data(), float_b.data(), count);
      wide.add_bf16(bf16.data(), float_a.data(), count);
      baseline.add_bf16(bf16.data(), float_b.data(), count);
      EXPECT_EQ(std::memcmp(float_a.data(), float_b.data(), size * sizeof(float)), 0);
      EXPECT_EQ(wide.statistics(float_a.data(), count).sum_of_squares,
                baseline.statistics(float_b.data(), count).sum_of_squares);
    }
  }
}

}  // namespace
}  // namespace shoal::server

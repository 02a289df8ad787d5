#include "server/store/adamw.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "core/base/random.h"
#include "gtest/gtest.h"

namespace shoal::server {
namespace {

// torch.optim.AdamW in double, element by element.
struct Reference {
  double p = 0, m = 0, v = 0;
  void Step(double gradient, int64_t step, double learning_rate, const AdamWOptions& options) {
    p *= 1 - learning_rate * options.weight_decay;
    m += (gradient - m) * (1 - options.beta1);
    v = v * options.beta2 + gradient * gradient * (1 - options.beta2);
    const double exponent = static_cast<double>(step);
    const double bias_correction1 = 1 - std::pow(options.beta1, exponent);
    const double bias_correction2 = 1 - std::pow(options.beta2, exponent);
    p -= learning_rate / bias_correction1 * m /
         (std::sqrt(v) / std::sqrt(bias_correction2) + options.epsilon);
  }
};

class AdamW : public testing::TestWithParam<KernelWidth> {};
INSTANTIATE_TEST_SUITE_P(Widths, AdamW, testing::ValuesIn(AvailableKernelWidths()),
                         [](const auto& info) {
                           return info.param == KernelWidth::kWide ? "wide" : "baseline";
                         });

TEST_P(AdamW, FollowsTheDoubleReference) {
  constexpr size_t kCount = 1003;
  constexpr int64_t kSteps = 20;
  for (const bool decays : {false, true}) {
    const AdamWOptions options = {.weight_decay = decays ? 0.1 : 0};
    Random random(5);
    std::vector<float> p(kCount), m(kCount), v(kCount), wire(kCount), gradient(kCount);
    std::vector<Reference> reference(kCount);
    for (size_t i = 0; i < kCount; ++i) {
      p[i] = static_cast<float>(random.Normal());
      reference[i].p = static_cast<double>(p[i]);
    }
    for (int64_t step = 1; step <= kSteps; ++step) {
      const double learning_rate = 1e-3 * static_cast<double>(step);
      const double clip = 1.0 / static_cast<double>(step);
      for (size_t i = 0; i < kCount; ++i) {
        gradient[i] =
            static_cast<float>(random.Normal() * std::pow(10.0, static_cast<double>(i % 9) - 6));
        reference[i].Step(static_cast<double>(gradient[i]) * clip, step, learning_rate, options);
      }
      const AdamWScalars scalars = MakeAdamWScalars(options, step, learning_rate, clip);
      GetAdamWKernels(GetParam())
          .f32(scalars, gradient.data(), p.data(), m.data(), v.data(), wire.data(), kCount);
    }
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_NEAR(static_cast<double>(p[i]), reference[i].p,
                  2e-6 * (1 + std::fabs(reference[i].p)));
      // m cancels, so its error is relative to the gradients, not to itself.
      const double gradient_scale = std::pow(10.0, static_cast<double>(i % 9) - 6);
      EXPECT_NEAR(static_cast<double>(m[i]), reference[i].m, 1e-6 * gradient_scale);
      EXPECT_NEAR(static_cast<double>(v[i]), reference[i].v, 1e-5 * reference[i].v);
    }
    EXPECT_EQ(p, wire);
  }
}

TEST(AdamWScalarsTest, FirstStepMovesBySignTimesLearningRate) {
  // On the first step m / sqrt(v) is the gradient's sign, whatever its size.
  const AdamWScalars scalars = MakeAdamWScalars({.weight_decay = 0}, 1, 0.5, 1.0);
  const float gradient[] = {3.0f, -0.25f, 0.0f};
  float p[] = {1, 1, 1}, m[3] = {}, v[3] = {}, wire[3] = {};
  GetAdamWKernels().f32(scalars, gradient, p, m, v, wire, 3);
  EXPECT_NEAR(p[0], 0.5f, 1e-6f);
  EXPECT_NEAR(p[1], 1.5f, 1e-6f);
  EXPECT_EQ(p[2], 1.0f);
}

TEST(AdamWWidths, GiveTheSameBits) {
  for (const int64_t count : {1, 5, 16, 100, 4099}) {
    const auto size = static_cast<size_t>(count);
    std::vector<std::vector<float>> results;
    for (const KernelWidth width : AvailableKernelWidths()) {
      Random random(9);
      std::vector<float> state(4 * size);
      for (size_t i = 0; i < state.size(); ++i) {
        state[i] = static_cast<float>(random.Normal() * 1e-2);
        if (i >= 3 * size) {
          state[i] *= state[i];  // v
        }
      }
      std::vector<BFloat16> wire(size);
      const AdamWScalars scalars = MakeAdamWScalars(AdamWOptions(), 3, 1e-3, 0.7);
      GetAdamWKernels(width).bf16(scalars, state.data(), &state[size], &state[2 * size],
                                  &state[3 * size], wire.data(), count);
      for (size_t i = 0; i < size; ++i) {
        EXPECT_EQ(wire[i].bits, BFloat16(state[size + i]).bits);
      }
      results.push_back(state);
    }
    for (const std::vector<float>& result : results) {
      EXPECT_EQ(std::memcmp(result.data(), results[0].data(), result.size() * sizeof(float)), 0);
    }
  }
}

}  // namespace
}  // namespace shoal::server

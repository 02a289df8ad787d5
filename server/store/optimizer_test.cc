#include "server/store/optimizer.h"

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "core/base/random.h"
#include "gtest/gtest.h"
#include "server/store/packed_moments.h"

namespace shoal::server {
namespace {

// torch.optim.AdamW in double, element by element.
struct Reference {
  double p = 0, m = 0, v = 0;
  void Step(double gradient, int64_t step, double learning_rate, const OptimizerOptions& options) {
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

class OptimizerTest : public testing::TestWithParam<KernelWidth> {};
INSTANTIATE_TEST_SUITE_P(Widths, OptimizerTest, testing::ValuesIn(AvailableKernelWidths()),
                         [](const auto& info) {
                           return info.param == KernelWidth::kWide ? "wide" : "baseline";
                         });

TEST_P(OptimizerTest, AdamWFollowsTheDoubleReference) {
  constexpr size_t kCount = 1003;
  constexpr int64_t kSteps = 20;
  for (const bool decays : {false, true}) {
    const OptimizerOptions options = {.weight_decay = decays ? 0.1 : 0};
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
      const UpdateScalars scalars = MakeUpdateScalars(options, step, learning_rate, clip);
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

TEST(UpdateScalarsTest, FirstStepMovesBySignTimesLearningRate) {
  // On the first step m / sqrt(v) is the gradient's sign, whatever its size.
  const UpdateScalars scalars = MakeUpdateScalars({.weight_decay = 0}, 1, 0.5, 1.0);
  const float gradient[] = {3.0f, -0.25f, 0.0f};
  float p[] = {1, 1, 1}, m[3] = {}, v[3] = {}, wire[3] = {};
  GetAdamWKernels().f32(scalars, gradient, p, m, v, wire, 3);
  EXPECT_NEAR(p[0], 0.5f, 1e-6f);
  EXPECT_NEAR(p[1], 1.5f, 1e-6f);
  EXPECT_EQ(p[2], 1.0f);
}

// Its first step has exact moments. Later ones divide roots that are some hundredths off by roots
// that are, so a weight goes about as far as AdamW's would.
TEST_P(OptimizerTest, AdamW8StartsAsAdamWAndStaysNearIt) {
  constexpr size_t kCount = 1008;
  constexpr size_t kPacked = kCount / plan::kPackedBlock * plan::kPackedBlockBytes;
  constexpr int64_t kSteps = 50;
  Random random(6);
  std::vector<float> p(kCount), m(kCount), v(kCount), gradient(kCount), wire(kCount);
  std::vector<std::byte> packed_m(kPacked), packed_v(kPacked);
  for (float& weight : p) {
    weight = static_cast<float>(random.Normal());
  }
  const std::vector<float> start = p;
  std::vector<float> p8 = p;
  double moved = 0;
  double apart = 0;
  for (int64_t step = 1; step <= kSteps; ++step) {
    for (size_t i = 0; i < kCount; ++i) {
      const double size = std::pow(10.0, static_cast<double>(i % 3) - 6);
      gradient[i] = static_cast<float>((random.Normal() + 0.5) * size);
    }
    const UpdateScalars scalars = MakeUpdateScalars({.weight_decay = 0}, step, 1e-3, 1);
    GetAdamWKernels(GetParam())
        .f32(scalars, gradient.data(), p.data(), m.data(), v.data(), wire.data(), kCount);
    GetAdamW8Kernels(GetParam())
        .f32(scalars, gradient.data(), p8.data(), packed_m.data(), packed_v.data(), wire.data(),
             kCount);
    EXPECT_EQ(p8, wire);
    if (step == 1) {
      EXPECT_EQ(p8, p);
    }
  }
  for (size_t i = 0; i < kCount; ++i) {
    moved += std::fabs(static_cast<double>(p[i] - start[i]));
    apart += std::fabs(static_cast<double>(p8[i] - p[i]));
  }
  EXPECT_GT(moved, 0.005 * kCount);
  EXPECT_LT(apart, 0.05 * moved);
}

// Gradients become smaller, and a second moment follows by a thousandth of itself a step.
TEST_P(OptimizerTest, AdamW8FollowsASlowSecondMoment) {
  constexpr size_t kCount = 1024;
  constexpr size_t kPacked = kCount / plan::kPackedBlock * plan::kPackedBlockBytes;
  constexpr int64_t kSteps = 2000;
  constexpr int64_t kLarge = 100;
  const OptimizerOptions options = {.weight_decay = 0, .beta2 = 0.999};
  Random random(8);
  std::vector<float> p(kCount), m(kCount), v(kCount), p8(kCount), gradient(kCount), wire(kCount);
  std::vector<std::byte> packed_m(kPacked), packed_v(kPacked);
  for (int64_t step = 1; step <= kSteps; ++step) {
    for (float& element : gradient) {
      element = static_cast<float>((random.Normal() + 1) * (step <= kLarge ? 1e-2 : 1e-3));
    }
    const UpdateScalars scalars = MakeUpdateScalars(options, step, 1e-3, 1);
    GetAdamWKernels(GetParam())
        .f32(scalars, gradient.data(), p.data(), m.data(), v.data(), wire.data(), kCount);
    GetAdamW8Kernels(GetParam())
        .f32(scalars, gradient.data(), p8.data(), packed_m.data(), packed_v.data(), wire.data(),
             kCount);
  }
  double moved = 0;
  double apart = 0;
  double kept = 0;
  std::vector<float> unpacked(kCount);
  UnpackMoments(packed_v.data(), unpacked.data(), kCount, /*second=*/true);
  for (size_t i = 0; i < kCount; ++i) {
    moved += std::fabs(static_cast<double>(p[i]));
    apart += std::fabs(static_cast<double>(p8[i] - p[i]));
    kept += static_cast<double>(unpacked[i] / v[i]) / kCount;
  }
  EXPECT_NEAR(kept, 1, 0.02);
  EXPECT_LT(apart, 0.05 * moved);
}

TEST_P(OptimizerTest, LionFollowsTheDoubleReference) {
  constexpr size_t kCount = 1003;
  constexpr int64_t kSteps = 20;
  const OptimizerOptions options = {
      .kind = plan::Optimizer::kLion, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.99};
  Random random(5);
  std::vector<float> p(kCount), m(kCount), wire(kCount), gradient(kCount);
  std::vector<double> reference_p(kCount), reference_m(kCount);
  for (size_t i = 0; i < kCount; ++i) {
    p[i] = static_cast<float>(random.Normal());
    reference_p[i] = static_cast<double>(p[i]);
  }
  for (int64_t step = 1; step <= kSteps; ++step) {
    const double learning_rate = 1e-3 * static_cast<double>(step);
    for (size_t i = 0; i < kCount; ++i) {
      gradient[i] = i % 7 == 0 ? 0 : static_cast<float>(random.Normal());
      const double g = static_cast<double>(gradient[i]) * 0.5;
      const double direction = options.beta1 * reference_m[i] + (1 - options.beta1) * g;
      const double sign = direction > 0 ? 1 : (direction < 0 ? -1 : 0);
      reference_p[i] =
          reference_p[i] * (1 - learning_rate * options.weight_decay) - learning_rate * sign;
      reference_m[i] = options.beta2 * reference_m[i] + (1 - options.beta2) * g;
    }
    GetLionKernels(GetParam())
        .f32(MakeUpdateScalars(options, step, learning_rate, 0.5), gradient.data(), p.data(),
             m.data(), nullptr, wire.data(), kCount);
  }
  for (size_t i = 0; i < kCount; ++i) {
    EXPECT_NEAR(static_cast<double>(p[i]), reference_p[i], 2e-6 * (1 + std::fabs(reference_p[i])));
    EXPECT_NEAR(static_cast<double>(m[i]), reference_m[i], 1e-6);
  }
  EXPECT_EQ(p, wire);
}

TEST(OptimizerWidths, GiveTheSameBitsForOptimizersOfOtherState) {
  constexpr int64_t kCount = 4096;
  constexpr auto kSize = static_cast<size_t>(kCount);
  for (const plan::Optimizer kind : {plan::Optimizer::kAdamW8, plan::Optimizer::kLion}) {
    const auto bytes = static_cast<size_t>(plan::MomentsOf(kind).ArrayBytes(kCount));
    std::vector<std::vector<std::byte>> results;
    for (const KernelWidth width : AvailableKernelWidths()) {
      Random random(9);
      std::vector<float> gradient(kSize), master(kSize, 1.0F);
      std::vector<BFloat16> wire(kSize);
      std::vector<std::byte> first(bytes), second(bytes);
      for (int64_t step = 1; step <= 3; ++step) {
        for (float& value : gradient) {
          value = static_cast<float>(random.Normal() * std::pow(10.0, -6 * random.Uniform()));
        }
        GetOptimizerKernels(kind, width)
            .bf16(MakeUpdateScalars({.kind = kind}, step, 1e-3, 0.7), gradient.data(),
                  master.data(), first.data(), second.data(), wire.data(), kCount);
      }
      std::vector<std::byte>& result = results.emplace_back(first);
      result.insert(result.end(), second.begin(), second.end());
      const auto weights = std::as_bytes(std::span(master));
      result.insert(result.end(), weights.begin(), weights.end());
    }
    for (const auto& result : results) {
      EXPECT_TRUE(result == results[0]) << "optimizer " << static_cast<int>(kind);
    }
  }
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
      const UpdateScalars scalars = MakeUpdateScalars(OptimizerOptions(), 3, 1e-3, 0.7);
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

#include "server/store/adamw.h"

#include <cmath>

namespace shoal::server {
namespace {

struct Update {
  template <typename Wire>
  SHOAL_INLINE void Run(const AdamWScalars& scalars, const float* __restrict gradient,
                        float* __restrict master, float* __restrict m, float* __restrict v,
                        Wire* __restrict wire, int64_t count) {
    const AdamWScalars s = scalars;
    for (int64_t i = 0; i < count; ++i) {
      const float g = gradient[i] * s.clip;
      const float decayed = master[i] * s.decay_factor;
      const float first = m[i] + (g - m[i]) * s.one_minus_beta1;
      const float second = v[i] * s.beta2 + g * g * s.one_minus_beta2;
      const float denominator = std::sqrt(second) / s.bias_correction2_sqrt + s.epsilon;
      const float updated = decayed - s.step_size * (first / denominator);
      m[i] = first;
      v[i] = second;
      master[i] = updated;
      wire[i] = Wire(updated);
    }
  }
};

constexpr AdamWKernels kBaseline = {RunBaseline<Update>, RunBaseline<Update>};
constexpr AdamWKernels kWide = {RunWide<Update>, RunWide<Update>};

}  // namespace

AdamWScalars MakeAdamWScalars(const AdamWOptions& options, int64_t step, double learning_rate,
                              double clip_coefficient) {
  const auto exponent = static_cast<double>(step);
  return {
      .clip = static_cast<float>(clip_coefficient),
      .one_minus_beta1 = static_cast<float>(1 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta2 = static_cast<float>(1 - options.beta2),
      .bias_correction2_sqrt = static_cast<float>(std::sqrt(1 - std::pow(options.beta2, exponent))),
      .epsilon = static_cast<float>(options.epsilon),
      .step_size = static_cast<float>(learning_rate / (1 - std::pow(options.beta1, exponent))),
      .decay_factor = static_cast<float>(1 - learning_rate * options.weight_decay)};
}

const AdamWKernels& GetAdamWKernels(KernelWidth width) {
  return width == KernelWidth::kWide ? kWide : kBaseline;
}

}  // namespace shoal::server

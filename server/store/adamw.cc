#include "server/store/adamw.h"

#include <cmath>

namespace shoal::server {
namespace {

template <typename Wire>
SHOAL_KERNEL_BODY void Update(const AdamWScalars& scalars, const float* __restrict gradient,
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

#define SHOAL_DEFINE_KERNELS(Suffix, attribute)                                                    \
  attribute void F32##Suffix(const AdamWScalars& s, const float* g, float* p, float* m, float* v,  \
                             float* w, int64_t n) {                                                \
    Update(s, g, p, m, v, w, n);                                                                   \
  }                                                                                                \
  attribute void Bf16##Suffix(const AdamWScalars& s, const float* g, float* p, float* m, float* v, \
                              BFloat16* w, int64_t n) {                                            \
    Update(s, g, p, m, v, w, n);                                                                   \
  }                                                                                                \
  constexpr AdamWKernels k##Suffix = {F32##Suffix, Bf16##Suffix};

SHOAL_DEFINE_KERNELS(Baseline, )
#if SHOAL_HAS_WIDE_KERNELS
SHOAL_DEFINE_KERNELS(Wide, SHOAL_WIDE_KERNEL)
#endif
#undef SHOAL_DEFINE_KERNELS

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
#if SHOAL_HAS_WIDE_KERNELS
  if (width == KernelWidth::kWide) {
    return kWide;
  }
#endif
  return kBaseline;
}

}  // namespace shoal::server

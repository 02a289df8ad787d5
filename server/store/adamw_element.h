// AdamW on one element, as PyTorch's torch.optim.AdamW computes it, with all in fp32:
//
//   g = gradient * clip
//   p = p * (1 - lr * weight_decay)                    (where decay applies)
//   m = m + (g - m) * (1 - beta1)
//   v = v * beta2 + g * g * (1 - beta2)
//   p = p - lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
#pragma once

#include <cmath>

#include "core/base/simd.h"
#include "server/store/update_scalars.h"

namespace shoal::server {

// Returns the new master weight.
SHOAL_INLINE float AdamWElement(const UpdateScalars& s, float gradient, float master, float& m,
                                float& v) {
  const float g = gradient * s.clip;
  const float decayed = master * s.decay_factor;
  m = m + (g - m) * s.one_minus_beta1;
  v = v * s.beta2 + g * g * s.one_minus_beta2;
  const float denominator = std::sqrt(v) / s.bias_correction2_sqrt + s.epsilon;
  return decayed - s.step_size * (m / denominator);
}

}  // namespace shoal::server

// The scalars of an optimizer's formula, for kernels on CPUs (server/store/optimizer.h, which makes
// them) and on GPUs (server/store/cuda/adamw.h). Plain, so that nvcc compiles it too.
#pragma once

#include <cstdint>

namespace shoal::server {

// The scalars of one step.
struct UpdateScalars {
  float clip = 1;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float bias_correction2_sqrt = 1;  // of AdamW
  float epsilon = 0;                // same
  float step_size = 0;              // AdamW: lr / (1 - beta1^step); Lion: lr
  float decay_factor = 1;           // 1 - lr * weight_decay
  uint32_t draws = 0;               // of moments in 8 bits (packed_moments.h): other in every step
};

}  // namespace shoal::server

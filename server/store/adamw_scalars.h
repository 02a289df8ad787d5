// The scalars of AdamW's formula, for kernels on CPUs (server/store/adamw.h, which makes them) and
// on GPUs (server/store/cuda/adamw.h). Plain, so that nvcc compiles it too.
#pragma once

namespace shoal::server {

// The scalars of one step.
struct AdamWScalars {
  float clip = 1;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float bias_correction2_sqrt = 1;
  float epsilon = 0;
  float step_size = 0;     // lr / (1 - beta1^step)
  float decay_factor = 1;  // 1 - lr * weight_decay
};

}  // namespace shoal::server

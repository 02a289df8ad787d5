// AdamW on one range of a partition, as PyTorch's torch.optim.AdamW computes it, with all state in
// fp32:
//
//   g = gradient * clip
//   p = p * (1 - lr * weight_decay)                    (where decay applies)
//   m = m + (g - m) * (1 - beta1)
//   v = v * beta2 + g * g * (1 - beta2)
//   p = p - lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
//
// The same pass writes p in the wire type, so that publishing does not read the weights again.
// Scalars are computed in double and rounded to float once. Pure and thread-safe; gives the same
// bits at every vector width.
#pragma once

#include <cstdint>

#include "core/base/bf16.h"
#include "core/base/simd.h"
#include "server/store/adamw_scalars.h"

namespace shoal::server {

struct AdamWOptions {
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
};

// `step` counts from 1.
AdamWScalars MakeAdamWScalars(const AdamWOptions& options, int64_t step, double learning_rate,
                              double clip_coefficient);

// Updates `count` elements of master, m and v in place and overwrites wire. Arrays must not
// overlap.
struct AdamWKernels {
  void (*f32)(const AdamWScalars& scalars, const float* gradient, float* master, float* m, float* v,
              float* wire, int64_t count);
  void (*bf16)(const AdamWScalars& scalars, const float* gradient, float* master, float* m,
               float* v, BFloat16* wire, int64_t count);
};

const AdamWKernels& GetAdamWKernels(KernelWidth width = BestKernelWidth());

}  // namespace shoal::server

// The optimizers of train.optimizer, each a pass over one range of a partition: adamw.cc, adamw8.cc
// and lion.cc show their formulas. core/model/optimizer.h says what each keeps.
//
// The same pass writes the weights in the wire type, so that publishing does not read them again.
// Scalars are computed in double and rounded to float once. Pure and thread-safe; gives the same
// bits at every vector width.
#pragma once

#include <cstdint>

#include "core/base/bf16.h"
#include "core/base/simd.h"
#include "core/model/optimizer.h"
#include "server/store/update_scalars.h"

namespace shoal::server {

struct OptimizerOptions {
  plan::Optimizer kind = plan::Optimizer::kAdamW;
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
};

// `step` counts from 1.
UpdateScalars MakeUpdateScalars(const OptimizerOptions& options, int64_t step, double learning_rate,
                                double clip_coefficient);

// Updates `count` elements of master and of the moments in place and overwrites wire. Moments lie
// as plan::Moments says, the second is null where the optimizer has none. Arrays must not overlap.
struct OptimizerKernels {
  void (*f32)(const UpdateScalars& scalars, const float* gradient, float* master, void* first,
              void* second, float* wire, int64_t count);
  void (*bf16)(const UpdateScalars& scalars, const float* gradient, float* master, void* first,
               void* second, BFloat16* wire, int64_t count);
};

const OptimizerKernels& GetAdamWKernels(KernelWidth width = BestKernelWidth());
const OptimizerKernels& GetAdamW8Kernels(KernelWidth width = BestKernelWidth());
const OptimizerKernels& GetLionKernels(KernelWidth width = BestKernelWidth());
const OptimizerKernels& GetOptimizerKernels(plan::Optimizer kind,
                                            KernelWidth width = BestKernelWidth());

}  // namespace shoal::server

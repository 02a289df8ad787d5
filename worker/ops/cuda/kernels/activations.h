// Functions of single elements, in device code. Only for kernels.
#pragma once

#include "core/gpu/kernel/kernel.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {

SHOAL_DEVICE float Sigmoid(float x) {
  constexpr float kLog2E = 1.44269504088896341f;
  return DivideApproximate(1.0f, 1.0f + Exp2Approximate(-x * kLog2E));
}

// cap * tanh(x / cap)
SHOAL_DEVICE float SoftCap(float x, float cap) {
  return cap * (2.0f * Sigmoid(2.0f / cap * x) - 1.0f);
}
// Its derivative, from what it returned.
SHOAL_DEVICE float SoftCapSlope(float capped, float cap) {
  const float tanh = capped / cap;
  return 1.0f - tanh * tanh;
}

}  // namespace shoal::worker::cuda

// AdamW on flat arrays in device memory, for master weights and moments kept there. Computes,
// operation for operation as server/store/adamw_element.h, hence with the same bits as on a CPU:
//
//   g = gradient * clip
//   p = p * (1 - lr * weight_decay)
//   m = m + (g - m) * (1 - beta1)
//   v = v * beta2 + g * g * (1 - beta2)
//   p = p - lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/gpu/kernel/element.h"
#include "server/store/update_scalars.h"

namespace shoal::server::cuda {

// Updates master, m and v in place and overwrites `wire` with the new master: fp32, or bf16 rounded
// to nearest even. Arrays of `count` elements that must not overlap. Per element it reads 16 bytes
// and writes 12 plus the size of a wire element.
struct AdamWArgs {
  UpdateScalars scalars;
  const float* gradient = nullptr;
  float* master = nullptr;
  float* m = nullptr;
  float* v = nullptr;
  void* wire = nullptr;
  gpu::Element wire_element = gpu::Element::kF32;
  int64_t count = 0;
};
cudaError_t AdamW(cudaStream_t stream, const AdamWArgs& args);

}  // namespace shoal::server::cuda

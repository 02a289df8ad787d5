// AdamW on flat arrays in device memory, for whoever keeps master weights and moments there: the
// arithmetic of server/store/adamw.h, operation for operation, so the same bits as on a CPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/gpu/kernel/element.h"
#include "server/store/adamw_scalars.h"

namespace shoal::server::cuda {

// Updates master, m and v in place and overwrites `wire` with the new master: fp32, or bf16 rounded
// to nearest even. Arrays of `count` elements that do not overlap. Reads 16 bytes an element and
// writes 12 and the wire's.
struct AdamWArgs {
  AdamWScalars scalars;
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

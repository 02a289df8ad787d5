#include "gpu/emulation/emulated_gpu.h"

#include "gpu/testing/gpu.h"

namespace shoal::gpu {

bool PrepareGpu(uint64_t seed) {
  SetEmulatedGpus({.seed = seed});
  return true;
}

}  // namespace shoal::gpu

#include "worker/backend/cuda/emulation/emulated_gpu.h"

#include "worker/backend/cuda/testing/gpu.h"

namespace shoal::worker::cuda {

bool PrepareGpu(uint64_t seed) {
  SetEmulatedGpus({.seed = seed});
  return true;
}

}  // namespace shoal::worker::cuda

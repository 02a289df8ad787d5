#include "core/gpu/fake_cuda/emulated_gpu.h"

#include "core/gpu/testing/gpu.h"

namespace shoal::gpu {

bool PrepareGpu(uint64_t seed, int64_t shared_bytes) {
  SetEmulatedGpus({.seed = seed, .shared_bytes = shared_bytes});
  return true;
}

}  // namespace shoal::gpu

#include "core/gpu/fake_cuda/fake_cuda.h"
#include "core/gpu/testing/gpu.h"

namespace shoal::gpu {

bool PrepareGpu(uint64_t seed, int64_t shared_bytes) {
  SetFakeGpus({.seed = seed, .shared_bytes = shared_bytes});
  return true;
}

}  // namespace shoal::gpu

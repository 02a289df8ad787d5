#include "server/store/testing/state.h"

#include "core/gpu/testing/gpu.h"
#include "server/store/cuda/cuda_state.h"

namespace shoal::server {

bool PrepareState(uint64_t seed) { return gpu::PrepareGpu(seed); }
StateFactory TestedState() {
  return [](const StateLayout& layout, ThreadPool*) { return MakeCudaState(0, layout); };
}

}  // namespace shoal::server

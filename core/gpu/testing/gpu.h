// The GPU of a test that runs on both kinds: the fake one if the test is linked to the
// fake, and the machine's own, if it has one, if the test is linked to CUDA's runtime.
#pragma once

#include <cstdint>

namespace shoal::gpu {

// Returns whether there is a GPU. Recreates a fake one, with work in the seed's order and this
// much shared memory per block.
bool PrepareGpu(uint64_t seed, int64_t shared_bytes = 227 << 10);

}  // namespace shoal::gpu

// The GPU of a test that runs on both kinds: the emulated one, where the test is linked to the
// emulation, and the machine's own, where there is one and the test is linked to CUDA's runtime.
#pragma once

#include <cstdint>

namespace shoal::gpu {

// Whether there is a GPU. An emulated one is new, with work in the seed's order and this much
// shared memory for a block at most.
bool PrepareGpu(uint64_t seed, int64_t shared_bytes = 227 << 10);

}  // namespace shoal::gpu

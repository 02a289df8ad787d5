// How many threads a block has. Chosen for GPUs with about 130 multiprocessors of up to 2048
// threads each (H100, H200).
#pragma once

#include <cstdint>

namespace shoal::gpu {

inline constexpr int kBlockThreads = 256;
inline constexpr int kBlockWarps = kBlockThreads / 32;
// Enough blocks to fill such a GPU a few times over.
inline constexpr int64_t kManyBlocks = 1056;

constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace shoal::gpu

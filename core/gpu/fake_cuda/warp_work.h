// What the lanes of a warp compute together, once all of them have arrived with their operands.
// Only the fake includes it.
#pragma once

#include <array>
#include <cstdint>

namespace shoal::gpu::fake_cuda {

inline constexpr int kWarp = 32;

// A lane's operands, and where it wants the result: on its stack.
struct Operands {
  uint32_t value = 0;
  int from_lane = 0;
  const void* row = nullptr;
  uint32_t* to = nullptr;
  float* d = nullptr;
  const uint32_t* a = nullptr;
  const uint32_t* b = nullptr;
};
using Lanes = std::array<Operands, kWarp>;

void FinishShuffle(Lanes& lanes);
void FinishLoadMatrix(Lanes& lanes, bool transposed);
// Adds up in the order of k.
void FinishMultiplyAdd(Lanes& lanes);

}  // namespace shoal::gpu::fake_cuda

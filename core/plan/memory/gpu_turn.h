// Spreads the processes of a local job over the machine's usable GPUs: servers and workers each
// take turns, by their index, over the list of GPUs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::plan {

// Returns the position in the list of the GPU of process `index` of its kind.
constexpr size_t PlaceInTurn(size_t index, size_t gpus) { return index % gpus; }

// One GPU of the list.
struct GpuTurn {
  size_t place = 0;
  size_t gpus = 1;

  constexpr bool Has(size_t index) const { return PlaceInTurn(index, gpus) == place; }
  // Returns how many of this many processes of a kind use it.
  constexpr int64_t Share(int64_t processes) const {
    const auto all = static_cast<size_t>(processes);
    return static_cast<int64_t>(all / gpus + (place < all % gpus ? 1 : 0));
  }
};

}  // namespace shoal::plan

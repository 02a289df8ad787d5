// How the processes of a local job take turns over the machine's GPUs: servers and workers alike,
// each by its index, over the list of those that can be used.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::plan {

// Of process `index` of its kind, the place of its GPU in the list.
constexpr size_t PlaceInTurn(size_t index, size_t gpus) { return index % gpus; }

// A GPU of the list.
struct GpuTurn {
  size_t place = 0;
  size_t gpus = 1;

  constexpr bool Has(size_t index) const { return PlaceInTurn(index, gpus) == place; }
  // Of so many processes of a kind, those on it.
  constexpr int64_t Share(int64_t processes) const {
    const auto all = static_cast<size_t>(processes);
    return static_cast<int64_t>(all / gpus + (place < all % gpus ? 1 : 0));
  }
};

}  // namespace shoal::plan

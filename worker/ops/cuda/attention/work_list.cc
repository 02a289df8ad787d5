#include "worker/ops/cuda/attention/work_list.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/status.h"

namespace shoal::worker::cuda {
namespace {

// How much there is to do for a tile: the keys that its rows go over, or the queries that its keys
// are gone over for.
int64_t WorkOf(const TileCut& cut, const AttentionTile& tile) {
  if (cut.of == TileCut::Of::kKeys) {
    return tile.length - tile.first;
  }
  const int64_t rows = int64_t{tile.length} * cut.group;
  return (std::min<int64_t>(tile.first + cut.size, rows) - 1) / cut.group + 1;
}

}  // namespace

std::vector<AttentionTile> ListTiles(const TileCut& cut, std::span<const int32_t> cu_seqlens) {
  std::vector<AttentionTile> tiles;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int32_t length = cu_seqlens[s + 1] - cu_seqlens[s];
    const int32_t end = cut.of == TileCut::Of::kKeys ? length : length * cut.group;
    for (int32_t first = 0; first < end; first += cut.size) {
      tiles.push_back({.begin = cu_seqlens[s], .length = length, .first = first});
    }
  }
  std::stable_sort(tiles.begin(), tiles.end(),
                   [&cut](const AttentionTile& a, const AttentionTile& b) {
                     return WorkOf(cut, a) > WorkOf(cut, b);
                   });
  return tiles;
}

WorkLists::WorkLists(Device& device, Stream& stream)
    : device_(device), stream_(stream), host_memory_(device.NewHostMemory(0)) {}

absl::StatusOr<WorkLists::List> WorkLists::Get(const TileCut& cut,
                                               std::span<const int32_t> cu_seqlens) {
  const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
    return kept.cut == cut && std::equal(kept.cu_seqlens.begin(), kept.cu_seqlens.end(),
                                         cu_seqlens.begin(), cu_seqlens.end());
  });
  if (found != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, found);
  } else {
    const std::vector<AttentionTile> tiles = ListTiles(cut, cu_seqlens);
    Kept made{.cut = cut,
              .cu_seqlens = {cu_seqlens.begin(), cu_seqlens.end()},
              .count = static_cast<int64_t>(tiles.size())};
    if (!tiles.empty()) {
      const auto bytes = static_cast<int64_t>(tiles.size() * sizeof(AttentionTile));
      SHOAL_ASSIGN_OR_RETURN(const Buffer staging, host_memory_->Allocate(bytes));
      SHOAL_ASSIGN_OR_RETURN(made.tiles, device_.Allocate(bytes));
      std::memcpy(staging.data(), tiles.data(), static_cast<size_t>(bytes));
      stream_.Copy(made.tiles.data(), staging.data(), bytes);
    }
    kept_.push_front(std::move(made));
    if (kept_.size() > kMost) {
      kept_.pop_back();
    }
  }
  const Kept& first = kept_.front();
  return List{reinterpret_cast<const AttentionTile*>(first.tiles.data()), first.count};
}

}  // namespace shoal::worker::cuda

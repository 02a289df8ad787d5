#include "worker/ops/cuda/attention/work_list.h"

#include <algorithm>
#include <cstring>

#include "core/base/status.h"

namespace shoal::worker::cuda {
namespace {

// Returns a tile's work: the keys that its rows see, or the queries that see its keys.
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

absl::StatusOr<WorkLists::List> WorkLists::Get(const TileCut& cut,
                                               std::span<const int32_t> cu_seqlens) {
  const KeptUploads<Entry>::Kept* list = lists_.Find([&](const Entry& entry) {
    return entry.cut == cut && std::ranges::equal(entry.cu_seqlens, cu_seqlens);
  });
  if (list == nullptr) {
    const std::vector<AttentionTile> tiles = ListTiles(cut, cu_seqlens);
    const size_t bytes = tiles.size() * sizeof(AttentionTile);
    SHOAL_ASSIGN_OR_RETURN(list, lists_.Keep({.cut = cut,
                                              .cu_seqlens = {cu_seqlens.begin(), cu_seqlens.end()},
                                              .count = static_cast<int64_t>(tiles.size())},
                                             static_cast<int64_t>(bytes), [&](std::byte* to) {
                                               std::memcpy(to, tiles.data(), bytes);
                                             }));
  }
  return List{reinterpret_cast<const AttentionTile*>(list->table.data()), list->entry.count};
}

}  // namespace shoal::worker::cuda

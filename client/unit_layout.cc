#include "client/unit_layout.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::client {

int64_t Layout::largest_partition() const {
  return plan::LargestCount(plan::OfKind(partitions, /*frozen=*/false));
}

bool Layout::KeepsPlace(int partition, int server, const Layout& next) const {
  const auto has = [&](const Layout& layout) {
    const plan::Holders& all = layout.holders[static_cast<size_t>(partition)];
    return std::ranges::find(all, server) != all.end();
  };
  const bool wrote = writer_of(partition) == server;
  const bool writes = next.writer_of(partition) == server;
  return !has(*this) || (has(next) && wrote == writes);
}

namespace {

void AddToPiece(UnitLayout& unit, int server, int partition) {
  auto piece = std::ranges::find(unit.pieces, server, &UnitPiece::server);
  if (piece == unit.pieces.end()) {
    piece = unit.pieces.insert(piece, {.server = server});
  }
  piece->partitions.push_back(partition);
}

}  // namespace

absl::StatusOr<Layout> MakeLayout(const std::vector<plan::UnitSpec>& units,
                                  const std::vector<plan::PartitionSpec>& partitions,
                                  const plan::ShardMap& map, int servers,
                                  std::span<const plan::ElementRange> ranges) {
  if (map.servers.size() != partitions.size() ||
      (!map.readers.empty() && map.readers.size() != partitions.size())) {
    return InvalidArgument(
        "the shard map has {} partitions, the job {}; do all processes run the same job?",
        map.servers.size(), partitions.size());
  }
  Layout layout{.partitions = partitions, .servers = servers, .generation = map.generation};
  SHOAL_CHECK(ranges.empty() || ranges.size() == units.size());
  const auto range_of = [&](size_t unit) {
    return ranges.empty() ? plan::ElementRange{.count = units[unit].count} : ranges[unit];
  };
  for (size_t unit = 0; unit < units.size(); ++unit) {
    layout.units.push_back({.name = units[unit].name,
                            .count = range_of(unit).count,
                            .frozen = units[unit].frozen,
                            .from_files = units[unit].from_files});
  }
  for (plan::PartitionSpec& partition : layout.partitions) {
    const plan::Holders& holders = map.servers[static_cast<size_t>(partition.id)];
    const auto is_none = [servers](int server) { return server < 0 || server >= servers; };
    if (holders.empty() || is_none(holders.front()) || is_none(map.reader(partition.id))) {
      return InvalidArgument("the shard map puts partition {} on no server of the {} there are",
                             partition.id, servers);
    }
    const int writer = holders.front();
    const int reader = map.reader(partition.id);
    layout.holders.push_back(holders);
    layout.reader.push_back(reader);
    SHOAL_CHECK(partition.unit >= 0 && static_cast<size_t>(partition.unit) < layout.units.size());
    const plan::ElementRange range = range_of(static_cast<size_t>(partition.unit));
    UnitLayout& unit = layout.units[static_cast<size_t>(partition.unit)];
    const int64_t end = partition.offset + partition.count;
    if (range.count == 0 || partition.offset >= range.end() || end <= range.first) {
      continue;
    }
    if (partition.offset < range.first || end > range.end()) {
      return InvalidArgument("elements {} to {} of {} cut partition {}", range.first, range.end(),
                             unit.name, partition.id);
    }
    if (partition.nf4_bytes > 0) {
      layout.nf4.try_emplace(partition.id,
                             Nf4Piece{.partition = {units[static_cast<size_t>(partition.unit)],
                                                    partition.offset, partition.count},
                                      .at = unit.nf4_bytes});
      unit.nf4_bytes += partition.nf4_bytes;
    }
    partition.offset -= range.first;
    unit.partitions.push_back(partition.id);
    AddToPiece(unit, writer, partition.id);
    if (reader != writer) {
      AddToPiece(unit, reader, partition.id);
    }
  }
  return layout;
}

}  // namespace shoal::client

#include "core/plan/placement/map_history.h"

#include <algorithm>
#include <utility>

#include "core/base/testing/planted.h"

namespace shoal::plan {
namespace {

// Where servers are after both.
std::vector<int> Then(std::vector<int> places, const std::vector<int>& later) {
  if (places.empty() || later.empty()) {
    return places.empty() ? later : places;
  }
  for (int& place : places) {
    place = place == MapChange::kGone ? place : later[static_cast<size_t>(place)];
  }
  return places;
}

}  // namespace

void MapHistory::Add(int64_t from, const ShardMap& now, std::vector<int> places,
                     std::vector<int> partitions) {
  Change& added = changes_.emplace_back();
  added = {.from = from,
           .to = now.generation,
           .places = std::move(places),
           .partitions = std::move(partitions)};
  if (SHOAL_PLANTED("place-forgotten") && !added.partitions.empty()) {
    added.partitions.pop_back();
  }
  partitions_ += added.partitions.size();
  while (changes_.size() > kMostChanges || 2 * partitions_ > now.servers.size()) {
    partitions_ -= changes_.front().partitions.size();
    changes_.pop_front();
  }
}

std::optional<MapChange> MapHistory::Since(int64_t generation, const ShardMap& now) const {
  MapChange change = {.from = generation, .to = now.generation};
  if (generation == now.generation) {
    return change;
  }
  const auto first = std::ranges::find(changes_, generation, &Change::from);
  if (first == changes_.end() || changes_.back().to != now.generation) {
    return std::nullopt;
  }
  std::vector<int> ids;
  for (auto since = first; since != changes_.end(); ++since) {
    ids.insert(ids.end(), since->partitions.begin(), since->partitions.end());
    change.places = Then(std::move(change.places), since->places);
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (const int id : ids) {
    change.partitions.push_back(
        {.id = id, .servers = now.servers[static_cast<size_t>(id)], .reader = now.reader(id)});
  }
  return change;
}

}  // namespace shoal::plan

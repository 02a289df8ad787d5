#include "server/coordinator/job/partition_move.h"

#include <algorithm>
#include <numeric>
#include <ranges>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/memory/server_memory.h"
#include "core/plan/placement/placement.h"

namespace shoal::server {
namespace {

// Without slots, which a server has as before.
int64_t BytesOf(const std::vector<plan::PartitionSpec>& held, const plan::ServiceOptions& service) {
  return plan::PlanServerMemory(held, /*slot_bytes=*/0, service, /*clients=*/0).total() -
         plan::kServerProcessBytes;
}

}  // namespace

std::vector<proto::PartitionSource> PartitionMove::SourcesFor(int member) const {
  std::map<int, proto::PartitionSource> sources;
  for (const int id : comes.at(member)) {
    const int from = giver[static_cast<size_t>(id)];
    sources[from].set_address(members[static_cast<size_t>(from)].address);
    sources[from].add_partitions(id);
  }
  std::vector<proto::PartitionSource> all;
  for (const auto& [from, source] : sources) {
    all.push_back(source);
  }
  return all;
}

std::vector<int> PartitionMove::joiners() const {
  std::vector<int> all(members.size() - before);
  std::iota(all.begin(), all.end(), static_cast<int>(before));
  return all;
}

std::vector<int> PlacesToBe(const std::vector<Member>& servers, const std::set<uint64_t>& leaving,
                            int64_t wanted) {
  std::vector<int> places;
  for (int place = 0; std::ssize(places) < wanted; ++place) {
    const auto server = static_cast<size_t>(place);
    if (server >= servers.size() || !leaving.contains(servers[server].incarnation)) {
      places.push_back(place);
    }
  }
  return places;
}

PartitionMove PlanMove(const std::vector<plan::PartitionSpec>& partitions,
                       const plan::ShardMap& now, const std::vector<Member>& servers,
                       const std::vector<Member>& spares, const std::vector<int>& places,
                       int64_t generation) {
  PartitionMove move;
  move.members = servers;
  move.before = servers.size();
  const int64_t comes = std::ranges::count_if(
      places, [&](int place) { return place >= static_cast<int>(servers.size()); });
  SHOAL_CHECK(comes <= std::ssize(spares));
  move.members.insert(move.members.end(), spares.begin(), spares.begin() + comes);
  std::map<int, int> place_after;
  for (const int place : places) {
    place_after[place] = static_cast<int>(move.after.size());
    move.after.push_back(move.members.at(static_cast<size_t>(place)));
  }
  for (int server = 0; server < static_cast<int>(servers.size()); ++server) {
    if (!place_after.contains(server)) {
      move.leavers.push_back(server);
    }
  }
  move.map = plan::PlanTarget(partitions, now, places);
  move.map.generation = generation;
  for (const plan::PartitionSpec& partition : partitions) {
    const int from = now.primary(partition.id);
    std::vector<int>& holders = move.map.servers[static_cast<size_t>(partition.id)];
    const int to = holders.front();
    holders = {place_after.at(to)};
    move.giver.push_back(from);
    if (from != to) {
      move.comes[to].push_back(partition.id);
      ++move.partitions;
    }
  }
  return move;
}

absl::Status CheckRoom(const std::vector<plan::PartitionSpec>& partitions,
                       const plan::ShardMap& now, const plan::ShardMap& target,
                       const std::vector<Member>& servers, const plan::ServiceOptions& service) {
  for (int server = 0; server < static_cast<int>(servers.size()); ++server) {
    std::vector<plan::PartitionSpec> has;
    std::vector<plan::PartitionSpec> comes;
    for (const plan::PartitionSpec& partition : partitions) {
      if (now.primary(partition.id) == server) {
        has.push_back(partition);
      } else if (target.primary(partition.id) == server) {
        comes.push_back(partition);
      }
    }
    const Member& member = servers[static_cast<size_t>(server)];
    const int64_t more = BytesOf(comes, service);
    const int64_t needed = BytesOf(has, service) + more;
    if (!comes.empty() && member.free_memory_bytes > 0 && needed > member.free_memory_bytes) {
      return ResourceExhausted(
          "{} would need {} of memory, {} of it for partitions that come, and its host had {} free "
          "for a job: nothing is moved",
          NameOf(member), FormatBytes(needed), FormatBytes(more),
          FormatBytes(member.free_memory_bytes));
    }
  }
  return absl::OkStatus();
}

double Imbalance(const std::vector<plan::PartitionSpec>& partitions, const plan::ShardMap& map,
                 const std::vector<int>& places) {
  std::map<int, int64_t> loads;
  for (const int place : places) {
    loads[place] = 0;
  }
  for (const plan::PartitionSpec& partition : partitions) {
    loads[map.primary(partition.id)] += partition.count;
  }
  const int64_t largest = std::max<int64_t>(1, plan::LargestCount(partitions));
  const auto [least, most] = std::ranges::minmax(loads | std::views::values);
  return static_cast<double>(most - least) / static_cast<double>(largest);
}

}  // namespace shoal::server

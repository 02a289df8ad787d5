#include "server/coordinator/job/partition_move.h"

#include <algorithm>
#include <ranges>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/memory/server_memory.h"

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

bool PartitionMove::Joins(uint64_t incarnation) const {
  const auto joiners = std::span(members).subspan(before);
  return std::ranges::find(joiners, incarnation, &Member::incarnation) != joiners.end();
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

std::vector<Member> JoinersOf(const std::vector<Member>& servers, const std::vector<Member>& spares,
                              const std::vector<int>& places) {
  std::vector<Member> joiners;
  for (const int place : places) {
    if (place >= static_cast<int>(servers.size())) {
      joiners.push_back(spares.at(static_cast<size_t>(place) - servers.size()));
    }
  }
  return joiners;
}

PartitionMove PlanWave(const std::vector<plan::PartitionSpec>& partitions,
                       const plan::ShardMap& now, const std::vector<Member>& servers,
                       const std::vector<Member>& spares, const std::vector<int>& places,
                       std::span<const plan::Relocation> relocations, int64_t bytes,
                       int64_t generation) {
  const auto first = plan::FirstOf(partitions, relocations, bytes);
  PartitionMove move;
  move.bytes_left = plan::MovedBytes(partitions, relocations.subspan(first.size()));
  move.partitions = std::ssize(first);
  move.members = servers;
  move.before = servers.size();
  const std::vector<Member> joiners = JoinersOf(servers, spares, places);
  move.members.insert(move.members.end(), joiners.begin(), joiners.end());
  for (const auto [partition, to] : first) {
    move.comes[to].push_back(partition);
  }
  move.map = plan::Relocate(now, first);
  move.map.generation = generation;
  std::set<int> holders;
  for (const plan::PartitionSpec& partition : partitions) {
    move.giver.push_back(now.primary(partition.id));
    holders.insert(move.map.primary(partition.id));
  }
  const bool last = move.bytes_left == 0;
  std::map<int, int> place_after;
  for (int member = 0; member < static_cast<int>(move.members.size()); ++member) {
    const bool has_place = std::ranges::find(places, member) != places.end();
    const bool came = member < static_cast<int>(servers.size());
    if (holders.contains(member) || (has_place && (came || last))) {
      place_after[member] = static_cast<int>(move.after.size());
      move.after.push_back(move.members[static_cast<size_t>(member)]);
    } else if (came) {
      move.leavers.push_back(member);
    }
  }
  for (std::vector<int>& holder : move.map.servers) {
    holder = {place_after.at(holder.front())};
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

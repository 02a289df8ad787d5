#include "server/coordinator/job/partition_move.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/job/shard_map_message.h"
#include "core/plan/memory/server_memory.h"

namespace shoal::server {
namespace {

// Without slots, which a server has as before.
int64_t BytesOf(const std::vector<plan::PartitionSpec>& held, const plan::ServiceOptions& service) {
  return plan::PlanServerMemory(held, /*slot_bytes=*/0, service, /*clients=*/0).total() -
         plan::kServerProcessBytes;
}

bool IsBackup(const plan::ShardMap& map, int partition, int server) {
  const std::span backups = std::span(map.servers[static_cast<size_t>(partition)]).subspan(1);
  return std::ranges::find(backups, server) != backups.end();
}

// From any holder that has it: the member itself, where it is one.
void FetchReserved(int member, PartitionMove& move) {
  const proto::ReserveRequest& reserve = move.reserves.at(member);
  std::map<int, proto::PartitionSource> sources;
  for (const auto* const all : {&reserve.partitions(), &reserve.backups()}) {
    for (const int id : *all) {
      const plan::Holders& holders = move.givers.at(id);
      const bool has = std::ranges::find(holders, member) != holders.end();
      sources[has ? member : holders.front()].add_partitions(id);
    }
  }
  for (auto& [from, source] : sources) {
    source.set_address(from == member ? "" : move.members[static_cast<size_t>(from)].address);
    *move.fetches[member].add_sources() = std::move(source);
  }
}

}  // namespace

MapForms FormsOf(const plan::ShardMap& map, size_t servers) {
  MapForms forms = {.generation = map.generation,
                    .bytes = plan::ToBytes(map),
                    .by_servers = std::vector<proto::HeldPartitions>(servers)};
  for (int id = 0; id < static_cast<int>(map.servers.size()); ++id) {
    const plan::Holders& holders = map.servers[static_cast<size_t>(id)];
    forms.by_servers[static_cast<size_t>(holders.front())].add_partitions(id);
    for (const int backup : std::span(holders).subspan(1)) {
      forms.by_servers[static_cast<size_t>(backup)].add_backups(id);
    }
  }
  return forms;
}

bool PartitionMove::Joins(uint64_t incarnation) const {
  const auto joiners = std::span(members).subspan(before);
  return std::ranges::find(joiners, incarnation, &Member::incarnation) != joiners.end();
}

bool ReservedPlaces::Reach(const PartitionMove& wave) {
  for (const auto& [taker, comes] : wave.comes) {
    for (const int partition : comes) {
      for (const int giver : wave.givers.at(partition)) {
        by_server_.erase(wave.members[static_cast<size_t>(giver)].incarnation);
      }
    }
  }
  bool reaches = true;
  for (const auto& [taker, comes] : wave.comes) {
    std::vector<int>& before = by_server_[wave.members[static_cast<size_t>(taker)].incarnation];
    const auto follow = wave.follow.find(taker);
    const std::span<const int> later =
        follow == wave.follow.end() ? std::span<const int>() : std::span(follow->second);
    reaches =
        reaches && std::ranges::includes(before, comes) && std::ranges::includes(before, later);
    before.assign(later.begin(), later.end());
  }
  return reaches;
}

bool AreSame(const std::vector<Member>& a, const std::vector<Member>& b) {
  return std::ranges::equal(a, b, {}, &Member::incarnation, &Member::incarnation);
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

PlannedWave PlanWave(WaveKey key, const std::vector<plan::PartitionSpec>& partitions,
                     const plan::ShardMap& now, const std::vector<Member>& servers,
                     const std::vector<Member>& joiners,
                     std::optional<std::vector<plan::Relocation>> relocations) {
  PlannedWave wave{.relocations = relocations.has_value()
                                      ? *std::move(relocations)
                                      : plan::PlanRelocations(partitions, now, key.places)};
  wave.bytes_left = plan::MovedBytes(partitions, wave.relocations);
  const int64_t bytes = key.pace.has_value()
                            ? plan::NextWaveBytes(*key.pace, wave.bytes_left, key.ended)
                            : wave.bytes_left;
  const auto first = plan::FirstOf(partitions, wave.relocations, bytes);
  const auto rest = std::span(wave.relocations).subspan(first.size());
  wave.move = PlanMoveTo(now, plan::Relocate(now, first), servers, joiners, key.places, /*lost=*/{},
                         plan::MovedBytes(partitions, rest));
  for (const plan::Relocation& later : rest) {
    wave.move.follow[later.to].push_back(later.partition);
  }
  for (auto& [member, later] : wave.move.follow) {
    std::ranges::sort(later);
    if (const auto asked = wave.move.reserves.find(member); asked != wave.move.reserves.end()) {
      asked->second.mutable_partitions()->Add(later.begin(), later.end());
    }
  }
  wave.key = std::move(key);
  return wave;
}

PartitionMove PlanMoveTo(const plan::ShardMap& now, plan::ShardMap target,
                         const std::vector<Member>& servers, const std::vector<Member>& joiners,
                         const std::vector<int>& places, const std::set<uint64_t>& lost,
                         int64_t bytes_left) {
  PartitionMove move;
  move.bytes_left = bytes_left;
  move.members = servers;
  move.before = servers.size();
  move.members.insert(move.members.end(), joiners.begin(), joiners.end());
  move.map = std::move(target);
  std::vector<bool> holds(move.members.size(), false);
  for (int id = 0; id < static_cast<int>(now.servers.size()); ++id) {
    const plan::Holders& before = now.servers[static_cast<size_t>(id)];
    const plan::Holders& after = move.map.servers[static_cast<size_t>(id)];
    for (const int holder : after) {
      holds[static_cast<size_t>(holder)] = true;
    }
    if (after == before) {
      continue;
    }
    move.changed.push_back(id);
    for (const int giver : before) {
      if (!lost.contains(servers[static_cast<size_t>(giver)].incarnation)) {
        move.givers[id].push_back(giver);
      }
    }
    if (after.front() != before.front()) {
      move.comes[after.front()].push_back(id);
      ++move.partitions;
    }
    for (const int backup : std::span(after).subspan(1)) {
      if (!IsBackup(now, id, backup)) {
        move.backups[backup].push_back(id);
      }
    }
  }
  const bool last = move.bytes_left == 0;
  std::vector<int> place_after(move.members.size());
  for (int member = 0; member < static_cast<int>(move.members.size()); ++member) {
    const bool has_place = std::ranges::find(places, member) != places.end();
    const bool came = member < static_cast<int>(servers.size());
    if (holds[static_cast<size_t>(member)] || (has_place && (came || last))) {
      place_after[static_cast<size_t>(member)] = static_cast<int>(move.after.size());
      move.after.push_back(move.members[static_cast<size_t>(member)]);
    } else if (came) {
      move.leavers.push_back(member);
    }
  }
  for (plan::Holders& of_partition : move.map.servers) {
    for (int& holder : of_partition) {
      holder = place_after[static_cast<size_t>(holder)];
    }
  }
  for (const auto& [member, come] : move.comes) {
    move.reserves[member].mutable_partitions()->Add(come.begin(), come.end());
  }
  for (const auto& [member, come] : move.backups) {
    move.reserves[member].mutable_backups()->Add(come.begin(), come.end());
  }
  for (const auto& [member, request] : move.reserves) {
    FetchReserved(member, move);
  }
  move.forms = FormsOf(move.map, move.after.size());
  return move;
}

std::map<int, std::vector<proto::PartitionSource>> GradientSources(
    const plan::ShardMap& map, const std::vector<Member>& servers) {
  std::map<int, std::map<int, proto::PartitionSource>> from;  // by backup and primary
  for (int id = 0; id < static_cast<int>(map.servers.size()); ++id) {
    const plan::Holders& holders = map.servers[static_cast<size_t>(id)];
    for (const int backup : std::span(holders).subspan(1)) {
      proto::PartitionSource& source = from[backup][holders.front()];
      source.set_address(servers[static_cast<size_t>(holders.front())].address);
      source.add_partitions(id);
    }
  }
  std::map<int, std::vector<proto::PartitionSource>> sources;
  for (const auto& [backup, by_primary] : from) {
    for (const auto& [primary, source] : by_primary) {
      sources[backup].push_back(source);
    }
  }
  return sources;
}

std::map<int, std::vector<proto::BackupPlace>> BackupPlaces(const plan::ShardMap& map,
                                                            const std::vector<Member>& servers) {
  std::map<int, std::map<int, proto::BackupPlace>> at;  // by primary and backup
  for (int id = 0; id < static_cast<int>(map.servers.size()); ++id) {
    const plan::Holders& holders = map.servers[static_cast<size_t>(id)];
    for (const int backup : std::span(holders).subspan(1)) {
      proto::BackupPlace& place = at[holders.front()][backup];
      place.set_address(servers[static_cast<size_t>(backup)].address);
      place.add_partitions(id);
    }
  }
  std::map<int, std::vector<proto::BackupPlace>> places;
  for (const auto& [primary, by_backup] : at) {
    for (const auto& [backup, place] : by_backup) {
      places[primary].push_back(place);
    }
  }
  return places;
}

bool IsHeldWithout(const plan::ShardMap& map, const std::vector<Member>& servers,
                   const std::set<uint64_t>& lost) {
  return std::ranges::all_of(map.servers, [&](const plan::Holders& holders) {
    return std::ranges::any_of(holders, [&](int holder) {
      return !lost.contains(servers[static_cast<size_t>(holder)].incarnation);
    });
  });
}

std::vector<std::string> HostsOf(const std::vector<Member>& members) {
  std::vector<std::string> hosts;
  for (const Member& member : members) {
    hosts.push_back(member.host);
  }
  return hosts;
}

absl::Status CheckRoom(const std::vector<plan::PartitionSpec>& partitions,
                       const plan::ShardMap& now, const plan::ShardMap& target,
                       const std::vector<Member>& servers, const plan::ServiceOptions& service) {
  for (int server = 0; server < static_cast<int>(servers.size()); ++server) {
    std::vector<plan::PartitionSpec> has;
    std::vector<plan::PartitionSpec> comes;
    int64_t backups_had = 0;
    int64_t backups_come = 0;
    for (const plan::PartitionSpec& partition : partitions) {
      if (now.primary(partition.id) == server) {
        has.push_back(partition);
      } else if (target.primary(partition.id) == server) {
        comes.push_back(partition);
      }
      if (IsBackup(now, partition.id, server)) {
        backups_had += plan::BackupBytes(partition, service);
      } else if (IsBackup(target, partition.id, server)) {
        backups_come += plan::BackupBytes(partition, service);
      }
    }
    const Member& member = servers[static_cast<size_t>(server)];
    const int64_t more = BytesOf(comes, service) + backups_come;
    const int64_t needed = BytesOf(has, service) + backups_had + more;
    if ((!comes.empty() || backups_come > 0) && member.free_memory_bytes > 0 &&
        needed > member.free_memory_bytes) {
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
  double apart = 0;
  for (const bool frozen : {false, true}) {
    const std::vector<plan::PartitionSpec> kind = plan::OfKind(partitions, frozen);
    std::map<int, int64_t> loads;
    for (const int place : places) {
      loads[place] = 0;
    }
    for (const plan::PartitionSpec& partition : kind) {
      loads[map.primary(partition.id)] += partition.count;
    }
    const int64_t largest = std::max<int64_t>(1, plan::LargestCount(kind));
    const auto [least, most] =
        std::minmax_element(loads.begin(), loads.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; });
    apart = std::max(
        apart, static_cast<double>(most->second - least->second) / static_cast<double>(largest));
  }
  return apart;
}

}  // namespace shoal::server

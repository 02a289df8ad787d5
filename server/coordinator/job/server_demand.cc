#include "server/coordinator/job/server_demand.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "core/base/bytes.h"
#include "core/base/status.h"

namespace shoal::server {
namespace {

struct HostRoom {
  int64_t servers = 0;
  int64_t needed = 0;
  int64_t free = 0;  // by the one that told least

  int64_t free_each() const { return free / servers; }
};

// Of the hosts that tell how much is free there, if the first servers there take what is needed.
std::map<std::string, HostRoom> RoomByHost(std::span<const Member> there,
                                           const std::vector<int64_t>& bytes) {
  std::map<std::string, HostRoom> hosts;
  for (size_t server = 0; server < std::min(there.size(), bytes.size()); ++server) {
    const Member& member = there[server];
    if (member.free_memory_bytes == 0) {
      continue;
    }
    HostRoom& host = hosts[member.host];
    host.free = host.servers == 0 ? member.free_memory_bytes
                                  : std::min(host.free, member.free_memory_bytes);
    host.needed += bytes[server];
    ++host.servers;
  }
  return hosts;
}

// The fewest servers, more than `too_few`, of which each needs at most so much: what each needs
// falls with their number.
std::optional<int64_t> FewestServers(const ServerBytes& bytes, int64_t too_few, int64_t free_each) {
  const auto fits = [&](int64_t servers) {
    return std::ranges::max(bytes(static_cast<int>(servers))) <= free_each;
  };
  int64_t enough = std::min<int64_t>(2 * too_few, kMaxMembers);
  while (!fits(enough)) {
    if (enough == kMaxMembers) {
      return std::nullopt;
    }
    too_few = enough;
    enough = std::min<int64_t>(2 * enough, kMaxMembers);
  }
  while (enough - too_few > 1) {
    const int64_t middle = (too_few + enough) / 2;
    (fits(middle) ? enough : too_few) = middle;
  }
  return enough;
}

std::string Remedy(const ServerDemand& demand, std::optional<int64_t> fewest) {
  if (!fewest.has_value()) {
    return "a smaller model or a smaller service.partition_bytes is needed";
  }
  if (demand.servers > 0) {
    return fmt::format("{} servers with as much would do (cluster.servers)", *fewest);
  }
  return fmt::format(
      "{} servers with as much would do: start more, or let it wait with --wait-for-servers",
      *fewest);
}

}  // namespace

absl::StatusOr<int64_t> DecideServers(std::span<const Member> there, const ServerDemand& demand) {
  const int64_t present = std::ssize(there);
  const int64_t takes = std::max<int64_t>(1, demand.servers > 0 ? demand.servers : present);
  if (present < takes && !demand.waits) {
    return FailedPrecondition(
        "the job takes {} servers (cluster.servers) and {} are there: start more, or let it wait "
        "with --wait-for-servers",
        takes, present);
  }
  if (demand.bytes == nullptr) {
    return takes;
  }
  const std::map<std::string, HostRoom> hosts =
      RoomByHost(there, demand.bytes(static_cast<int>(takes)));
  const auto full = std::ranges::find_if(
      hosts, [](const auto& host) { return host.second.needed > host.second.free; });
  if (full == hosts.end()) {
    return takes;
  }
  const auto free_each = [](const auto& host) { return host.second.free_each(); };
  const std::optional<int64_t> fewest = FewestServers(
      demand.bytes, takes, free_each(*std::ranges::min_element(hosts, {}, free_each)));
  if (demand.servers == 0 && demand.waits && fewest.has_value()) {
    return *fewest;
  }
  const HostRoom& room = full->second;
  return ResourceExhausted(
      "with {} {} the job needs {} of memory of the {} on {}, where {} are free: {}", takes,
      takes == 1 ? "server" : "servers", FormatBytes(room.needed),
      room.servers == 1 ? "one" : fmt::format("{}", room.servers), full->first,
      FormatBytes(room.free), Remedy(demand, fewest));
}

}  // namespace shoal::server

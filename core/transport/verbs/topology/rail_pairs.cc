#include <algorithm>
#include <optional>
#include <tuple>

#include "core/transport/verbs/topology/device_choice.h"
#include "core/transport/verbs/topology/gid_kind.h"

namespace shoal::transport {
namespace {

constexpr int kSubnetBits = 64;  // of an InfiniBand GID; a port's number follows

// Two rails that can reach each other. Everything compared looks the same from either side, so that
// both arrive at the same pairs.
struct Reach {
  RailPair pair;
  bool loopback = false;
  int prefix = 0;
  Gid low{};  // of the two addresses
  Gid high{};

  auto Order() const {
    return std::make_tuple(loopback, -prefix, pair.local + pair.remote, low, high);
  }
};

bool IsLoopback(const Gid& gid) { return KindOf(gid) == GidKind::kLoopback; }

// Whether the two lists may belong to one host, where loopback works.
bool MayBeOneHost(std::span<const Rail> local, std::span<const RemoteRail> remote) {
  std::vector<Gid> ours;
  for (const Rail& rail : local) {
    for (const GidDescription& gid : rail.gids) {
      if (!IsLoopback(gid.gid)) {
        ours.push_back(gid.gid);
      }
    }
  }
  bool theirs = false;
  for (const RemoteRail& rail : remote) {
    for (const Gid& gid : rail.gids) {
      if (std::find(ours.begin(), ours.end(), gid) != ours.end()) {
        return true;
      }
      theirs = theirs || !IsLoopback(gid);
    }
  }
  return ours.empty() || !theirs;
}

// Returns how two Ethernet addresses reach each other, if they do.
std::optional<Reach> EthernetReach(const Gid& local, const Gid& remote, bool one_host) {
  const bool loopback = IsLoopback(local);
  if (IsIpv4(local) != IsIpv4(remote) || loopback != IsLoopback(remote) ||
      (loopback && !one_host)) {
    return std::nullopt;
  }
  return Reach{{},
               loopback,
               CommonPrefixBits(local, remote),
               std::min(local, remote),
               std::max(local, remote)};
}

std::optional<Reach> InfiniBandReach(const Rail& local, const RemoteRail& remote) {
  if (local.port.lid == 0 || remote.lid == 0 || local.gids.empty() || remote.gids.empty() ||
      CommonPrefixBits(local.gids[0].gid, remote.gids[0]) < kSubnetBits) {
    return std::nullopt;
  }
  return Reach{{},
               false,
               kSubnetBits,
               std::min(local.gids[0].gid, remote.gids[0]),
               std::max(local.gids[0].gid, remote.gids[0])};
}

// Returns the best way between any of their addresses.
std::optional<Reach> ReachOf(const Rail& local, const RemoteRail& remote, bool one_host) {
  if (local.port.link_layer != remote.link_layer) {
    return std::nullopt;
  }
  if (local.port.link_layer == LinkLayer::kInfiniBand) {
    return InfiniBandReach(local, remote);
  }
  std::optional<Reach> best;
  // Ties go to the earlier addresses, then to the lower ones.
  const auto order = [&](const Reach& reach) {
    return std::make_tuple(reach.loopback, -reach.prefix,
                           reach.pair.local_gid + reach.pair.remote_gid, reach.low, reach.high);
  };
  for (size_t i = 0; i < local.gids.size(); ++i) {
    for (size_t j = 0; j < remote.gids.size(); ++j) {
      std::optional<Reach> reach = EthernetReach(local.gids[i].gid, remote.gids[j], one_host);
      if (!reach.has_value()) {
        continue;
      }
      reach->pair.local_gid = static_cast<int>(i);
      reach->pair.remote_gid = static_cast<int>(j);
      if (!best.has_value() || order(*reach) < order(*best)) {
        best = reach;
      }
    }
  }
  return best;
}

}  // namespace

std::vector<RailPair> PairRails(std::span<const Rail> local, std::span<const RemoteRail> remote) {
  const bool one_host = MayBeOneHost(local, remote);
  std::vector<Reach> reaches;
  for (size_t i = 0; i < local.size(); ++i) {
    for (size_t j = 0; j < remote.size(); ++j) {
      if (std::optional<Reach> reach = ReachOf(local[i], remote[j], one_host)) {
        reach->pair.local = static_cast<int>(i);
        reach->pair.remote = static_cast<int>(j);
        reaches.push_back(*reach);
      }
    }
  }
  // Two with a rail in common never tie: their sums of indices differ.
  std::sort(reaches.begin(), reaches.end(),
            [](const Reach& a, const Reach& b) { return a.Order() < b.Order(); });
  std::vector<RailPair> pairs;
  std::vector<bool> local_taken(local.size());
  std::vector<bool> remote_taken(remote.size());
  for (const Reach& reach : reaches) {
    const auto i = static_cast<size_t>(reach.pair.local);
    const auto j = static_cast<size_t>(reach.pair.remote);
    if (!local_taken[i] && !remote_taken[j]) {
      local_taken[i] = true;
      remote_taken[j] = true;
      pairs.push_back(reach.pair);
    }
  }
  return pairs;
}

}  // namespace shoal::transport

// Chooses which devices, ports and GIDs a process uses for RDMA, and pairs its rails with a peer's.
// Pure: the descriptions (device_probe.h) contain everything that decides, so the rules can be
// tested without hardware, and `shoal doctor` can say what would be taken and why the rest would
// not.
//
// Rules:
// - A port counts if its link is active.
// - On InfiniBand a port is addressed by its LID; the GID is sent along.
// - On Ethernet (RoCE) only RoCE v2 GIDs count, in this order: IPv4, global IPv6, unique local
//   IPv6, then loopback (soft-RoCE on lo). Link-local addresses (fe80::, 169.254/16) are never
//   chosen, as they are not routed and peers cannot tell their scope.
// - An index given by the user is taken as it is, if it exists.
// - Near devices come first: those with the most PCI bridges in common with a served GPU, then
//   those on the NUMA node of what is served, then faster links, then by name, so that processes of
//   one place arrive at the same order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/transport/verbs/topology/topology.h"

namespace shoal::transport {

using Gid = std::array<uint8_t, 16>;

enum class LinkLayer { kInfiniBand, kEthernet };
enum class GidType { kInfiniBand, kRoceV1, kRoceV2 };

struct GidDescription {
  int index = 0;
  Gid gid{};
  GidType type = GidType::kInfiniBand;
};

struct PortDescription {
  int port = 1;
  bool active = false;
  LinkLayer link_layer = LinkLayer::kEthernet;
  uint16_t lid = 0;
  int mtu_bytes = 0;              // active
  int64_t bits_per_second = 0;    // 0: unknown
  int64_t max_message_bytes = 0;  // larger transfers are cut
  std::vector<GidDescription> gids;
};

struct DeviceDescription {
  std::string name;    // "mlx5_0"
  int numa_node = -1;  // this and the path: see DeviceLocation (topology.h)
  std::string pci_path;
  std::string problem;  // why it could not be opened or queried; "" if it could
  std::vector<PortDescription> ports;

  // Limits of the device, which the transport respects.
  int max_work_requests = 0;  // of a queue
  int max_completions = 0;    // of a completion queue
  int max_queue_pairs = 0;
  int max_reads_as_target = 0;  // reads that a queue pair answers at once
  int max_reads_as_source = 0;
  int64_t max_region_bytes = 0;
  bool windows = false;  // type 2 memory windows, which bind a right to one queue pair
};

// What the user asks for and where the process runs.
struct DevicePreferences {
  std::vector<std::string>
      devices;         // "mlx5_0" or "mlx5_0:2"; only these, in this order. Empty: all
  int gid_index = -1;  // -1: chosen by the rules
  int max_rails = 4;
  ServedLocation place;
};

// A device's port, and the GIDs under which peers may reach it, preferred ones first. On InfiniBand
// there is exactly one.
struct Rail {
  std::string device;
  PortDescription port;
  std::vector<GidDescription> gids;
  std::string reason;  // for people: "RoCE v2 10.0.0.7 (index 3), NUMA node 0, 200 Gbit/s"
};

struct DeviceChoice {
  std::vector<Rail> rails;  // by preference; empty if RDMA cannot be used
  std::vector<std::string>
      rejected;  // one line for each device or port that was not taken: which, why and what to do
};

// InvalidArgument, listing what exists, if the user named devices or an index that do not exist.
absl::StatusOr<DeviceChoice> ChooseDevices(std::span<const DeviceDescription> devices,
                                           const DevicePreferences& preferences);

// A rail as its peer describes it in the handshake.
struct RemoteRail {
  LinkLayer link_layer = LinkLayer::kEthernet;
  uint16_t lid = 0;
  int mtu_bytes = 0;
  std::vector<Gid> gids;
};

struct RailPair {
  int local = 0;  // indices of rails
  int remote = 0;
  int local_gid = 0;  // indices into the rails' gids
  int remote_gid = 0;
};

// Pairs each local rail with at most one remote rail that it can reach. Empty if none can. The
// peer, given the same two lists, arrives at the same pairs in the same order.
//
// Both need the same link layer, and
// - for Ethernet the same address family, both or neither loopback; loopback only if both sides may
//   be one host (one of them has nothing else, or they have an address in common);
// - for InfiniBand the same subnet.
//
// Those with the longest common prefix of addresses come first, loopback last.
std::vector<RailPair> PairRails(std::span<const Rail> local, std::span<const RemoteRail> remote);

// "10.0.0.7", "fd00::7", "fe80::1".
std::string FormatGid(const Gid& gid);

}  // namespace shoal::transport

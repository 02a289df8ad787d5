// Which devices, ports and GIDs a process uses for RDMA, and which of its rails talks to which of a
// peer's. Pure: the caller brings the descriptions (device_probe.h) and everything that decides is
// in them, so the rules can be tested without hardware, and `shoal doctor` can say what would be
// taken and why the rest would not.
//
// Rules. A port counts if its link is active. On InfiniBand a port is addressed by its LID, the GID
// travels along. On Ethernet (RoCE) only RoCE v2 GIDs count, in this order: IPv4, global IPv6,
// unique local IPv6, then loopback (soft-RoCE on lo); link-local addresses (fe80::, 169.254/16) are
// never taken by themselves, as they are not routed and peers cannot tell their scope. An index
// given by the user is taken as it is, if it exists. Near devices come first: those with the most
// PCI bridges in common with a GPU that is served, then those of the same NUMA node as what is
// served, then faster links, then by name, so that processes of one place come to the same order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/transport/verbs/topology/machine_place.h"

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
  int numa_node = -1;  // this and the path: see DeviceLocation (machine_place.h)
  std::string pci_path;
  std::string problem;  // why it could not be opened or asked; "" if it could
  std::vector<PortDescription> ports;

  // Limits of the device that the transport keeps to.
  int max_work_requests = 0;  // of a queue
  int max_completions = 0;    // of a completion queue
  int max_queue_pairs = 0;
  int max_reads_as_target = 0;  // reads that a queue pair answers at once
  int max_reads_as_source = 0;
  int64_t max_region_bytes = 0;
  bool windows = false;  // type 2 memory windows, which bind a right to one queue pair
};

// What the user and the place of the process say.
struct DevicePreferences {
  std::vector<std::string>
      devices;         // "mlx5_0" or "mlx5_0:2"; in this order, and no others. Empty: all
  int gid_index = -1;  // -1: by the rules
  int max_rails = 4;
  ServedPlace place;
};

// A device's port, and the GIDs under which peers may reach it, the preferred first. On InfiniBand
// there is one.
struct Rail {
  std::string device;
  PortDescription port;
  std::vector<GidDescription> gids;
  std::string reason;  // for people: "RoCE v2 10.0.0.7 (index 3), NUMA node 0, 200 Gbit/s"
};

struct DeviceChoice {
  std::vector<Rail> rails;  // in the order of preference; empty if RDMA cannot be used
  std::vector<std::string>
      rejected;  // one line for each device or port that was not taken: which, why and what to do
};

// Devices or an index that the user named and that are not there: InvalidArgument, which lists
// those that are.
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

// Pairs each local rail with at most one remote rail that it can reach: the same link layer; for
// Ethernet the same address family and both or neither loopback, and loopback only where both sides
// may be one host (one of them has nothing else, or they have an address in common); for InfiniBand
// the same subnet. Those with the longest common prefix of addresses come first, loopback last.
// Empty if none can. The peer, given the same two lists, comes to the same pairs in the
// same order.
std::vector<RailPair> PairRails(std::span<const Rail> local, std::span<const RemoteRail> remote);

// "10.0.0.7", "fd00::7", "fe80::1".
std::string FormatGid(const Gid& gid);

}  // namespace shoal::transport

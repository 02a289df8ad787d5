#include "core/transport/verbs/topology/device_choice.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/status.h"
#include "core/transport/verbs/topology/gid_kind.h"

namespace shoal::transport {
namespace {

// A port with its device, while ports are being sorted.
struct Candidate {
  const DeviceDescription* device = nullptr;
  const PortDescription* port = nullptr;
};

// A line of DevicePreferences::devices.
struct NamedPort {
  std::string device;
  int port = 0;  // 0: all ports of the device
};

std::string NameOf(const Candidate& candidate) {
  return fmt::format("{}:{}", candidate.device->name, candidate.port->port);
}

std::string ListOf(std::span<const DeviceDescription> devices) {
  std::string list;
  for (const DeviceDescription& device : devices) {
    for (const PortDescription& port : device.ports) {
      list += fmt::format("{}{}:{}", list.empty() ? "" : ", ", device.name, port.port);
    }
    if (device.ports.empty()) {
      list += fmt::format("{}{}", list.empty() ? "" : ", ", device.name);
    }
  }
  return list.empty() ? "none" : list;
}

absl::StatusOr<NamedPort> ParseName(const std::string& text) {
  const size_t colon = text.rfind(':');
  NamedPort named{text.substr(0, colon), 0};
  if (colon != std::string::npos) {
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, named.port);
    if (error != std::errc() || stop != end || named.port < 1) {
      return InvalidArgument("RDMA device '{}': the port after the colon is a number from 1", text);
    }
  }
  if (named.device.empty()) {
    return InvalidArgument("RDMA device '{}': a device is named like mlx5_0 or mlx5_0:1", text);
  }
  return named;
}

// Returns how many bridges the two share: any means the same PCI switch or root port.
int CommonBridges(std::string_view a, std::string_view b) {
  int bridges = 0;
  while (!a.empty() && !b.empty()) {
    const std::string_view step = a.substr(0, a.find('/'));
    if (step != b.substr(0, b.find('/'))) {
      break;
    }
    // "0000:3b:00.0" is a function of a device; what comes before is the root.
    bridges += step.find('.') != std::string_view::npos ? 1 : 0;
    a.remove_prefix(std::min(a.size(), step.size() + 1));
    b.remove_prefix(std::min(b.size(), step.size() + 1));
  }
  return bridges;
}

// Returns the bridges shared with the nearest of the GPUs served.
int BridgesToGpus(const DeviceDescription& device, const DevicePreferences& preferences) {
  int most = 0;
  for (const std::string& gpu : preferences.place.pci_paths) {
    most = std::max(most, CommonBridges(device.pci_path, gpu));
  }
  return most;
}

bool IsNear(const DeviceDescription& device, const DevicePreferences& preferences) {
  return preferences.place.numa_node >= 0 && device.numa_node == preferences.place.numa_node;
}

// Smaller is taken earlier.
auto OrderOf(const Candidate& candidate, const DevicePreferences& preferences) {
  const DeviceDescription& device = *candidate.device;
  return std::make_tuple(-BridgesToGpus(device, preferences), IsNear(device, preferences) ? 0 : 1,
                         -candidate.port->bits_per_second, std::string_view(device.name),
                         candidate.port->port);
}

std::vector<Candidate> AllPorts(std::span<const DeviceDescription> devices,
                                const DevicePreferences& preferences, DeviceChoice& choice) {
  std::vector<Candidate> candidates;
  for (const DeviceDescription& device : devices) {
    for (const PortDescription& port : device.ports) {
      candidates.push_back({&device, &port});
    }
    if (device.ports.empty()) {
      choice.rejected.push_back(fmt::format(
          "{}: {}", device.name, device.problem.empty() ? "it has no ports" : device.problem));
    }
  }
  std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    return OrderOf(a, preferences) < OrderOf(b, preferences);
  });
  return candidates;
}

// Returns the ports in the order in which the user named them, each once.
absl::StatusOr<std::vector<Candidate>> NamedPorts(std::span<const DeviceDescription> devices,
                                                  const DevicePreferences& preferences,
                                                  DeviceChoice& choice) {
  std::vector<Candidate> candidates;
  const auto taken = [&](const DeviceDescription& device, const PortDescription* port) {
    return std::any_of(candidates.begin(), candidates.end(), [&](const Candidate& candidate) {
      return candidate.device == &device && (port == nullptr || candidate.port == port);
    });
  };
  for (const std::string& text : preferences.devices) {
    SHOAL_ASSIGN_OR_RETURN(const NamedPort named, ParseName(text));
    const auto device = std::find_if(devices.begin(), devices.end(),
                                     [&](const auto& it) { return it.name == named.device; });
    if (device == devices.end()) {
      return InvalidArgument("there is no RDMA device '{}'; this machine has {}", text,
                             ListOf(devices));
    }
    bool found = false;
    for (const PortDescription& port : device->ports) {
      if (named.port == 0 || named.port == port.port) {
        found = true;
        if (!taken(*device, &port)) {
          candidates.push_back({&*device, &port});
        }
      }
    }
    if (!found && !device->problem.empty()) {
      choice.rejected.push_back(fmt::format("{}: {}", device->name, device->problem));
    } else if (!found) {
      return InvalidArgument("RDMA device '{}' has no such port; this machine has {}", text,
                             ListOf(devices));
    }
  }
  for (const DeviceDescription& device : devices) {
    for (const PortDescription& port : device.ports) {
      if (!taken(device, &port)) {
        choice.rejected.push_back(fmt::format(
            "{}: not among the devices named; add it there to use it", NameOf({&device, &port})));
      }
    }
  }
  return candidates;
}

std::string_view KindName(const GidDescription& gid) {
  switch (gid.type) {
    case GidType::kInfiniBand:
      return "InfiniBand";
    case GidType::kRoceV1:
      return "RoCE v1";
    case GidType::kRoceV2:
      return "RoCE v2";
  }
  return "";
}

// Returns the RoCE v2 GIDs that peers can reach, by preference; each address once (containers and
// VLANs may repeat it).
std::vector<GidDescription> UsableGids(const PortDescription& port) {
  std::vector<GidDescription> gids;
  for (const GidDescription& gid : port.gids) {
    const bool again = std::any_of(gids.begin(), gids.end(),
                                   [&](const GidDescription& it) { return it.gid == gid.gid; });
    if (gid.type == GidType::kRoceV2 && IsUsable(KindOf(gid.gid)) && !again) {
      gids.push_back(gid);
    }
  }
  std::stable_sort(gids.begin(), gids.end(), [](const GidDescription& a, const GidDescription& b) {
    return std::make_pair(KindOf(a.gid), a.index) < std::make_pair(KindOf(b.gid), b.index);
  });
  return gids;
}

// Says why UsableGids found none.
std::string WhyNoGid(const PortDescription& port) {
  bool any = false;
  bool version2 = false;
  for (const GidDescription& gid : port.gids) {
    any = any || KindOf(gid.gid) != GidKind::kNone;
    version2 = version2 || (gid.type == GidType::kRoceV2 && KindOf(gid.gid) != GidKind::kNone);
  }
  if (!any) {
    return "its GID table is empty; set its network interface up and give it an IP address";
  }
  if (!version2) {
    return "it has RoCE v1 GIDs only, which do not cross routers; enable RoCE v2, or name a GID "
           "index to use one all the same";
  }
  return "it has link-local addresses only, which peers cannot reach by route; give its network "
         "interface an IPv4 or a global IPv6 address, or name a GID index to use one all the same";
}

std::string ReasonFor(const Candidate& candidate, const GidDescription& gid,
                      const DevicePreferences& preferences) {
  const DeviceDescription& device = *candidate.device;
  const PortDescription& port = *candidate.port;
  std::string reason =
      port.link_layer == LinkLayer::kInfiniBand
          ? fmt::format("InfiniBand LID {}, GID {} (index {})", port.lid, FormatGid(gid.gid),
                        gid.index)
          : fmt::format("{} {} (index {})", KindName(gid), FormatGid(gid.gid), gid.index);
  if (preferences.gid_index >= 0) {
    reason += ", index as given";
  }
  if (BridgesToGpus(device, preferences) > 0) {
    reason += ", behind the same PCI switch";
  }
  if (device.numa_node >= 0) {
    reason += fmt::format(", NUMA node {}", device.numa_node);
    if (IsNear(device, preferences)) {
      reason += " as this process";
    } else if (preferences.place.numa_node >= 0) {
      reason += fmt::format(" (this process: {})", preferences.place.numa_node);
    }
  }
  if (port.bits_per_second > 0) {
    reason += fmt::format(", {} Gbit/s", static_cast<double>(port.bits_per_second) / 1e9);
  }
  return reason;
}

// Returns the port as a rail, or why it cannot be one.
absl::StatusOr<Rail> MakeRail(const Candidate& candidate, const DevicePreferences& preferences) {
  const PortDescription& port = *candidate.port;
  const bool infiniband = port.link_layer == LinkLayer::kInfiniBand;
  if (infiniband && port.lid == 0) {
    return FailedPrecondition("it has no LID; see that a subnet manager (opensm) runs");
  }
  Rail rail{candidate.device->name, port, {}, ""};
  if (preferences.gid_index >= 0) {
    for (const GidDescription& gid : port.gids) {
      if (gid.index == preferences.gid_index) {
        rail.gids = {gid};
      }
    }
    if (rail.gids.empty()) {
      return NotFound("it has no GID of index {}", preferences.gid_index);
    }
  } else if (infiniband) {
    const auto first = std::min_element(
        port.gids.begin(), port.gids.end(),
        [](const GidDescription& a, const GidDescription& b) { return a.index < b.index; });
    if (first == port.gids.end()) {
      return FailedPrecondition("its GID table is empty; see that a subnet manager (opensm) runs");
    }
    rail.gids = {*first};
  } else {
    rail.gids = UsableGids(port);
    if (rail.gids.empty()) {
      return FailedPrecondition("{}", WhyNoGid(port));
    }
  }
  rail.reason = ReasonFor(candidate, rail.gids.front(), preferences);
  return rail;
}

std::string IndicesOf(std::span<const Candidate> candidates) {
  std::string list;
  for (const Candidate& candidate : candidates) {
    for (const GidDescription& gid : candidate.port->gids) {
      list += fmt::format("{}{} index {} ({} {})", list.empty() ? "" : ", ", NameOf(candidate),
                          gid.index, KindName(gid), FormatGid(gid.gid));
    }
  }
  return list.empty() ? "none" : list;
}

}  // namespace

absl::StatusOr<DeviceChoice> ChooseDevices(std::span<const DeviceDescription> devices,
                                           const DevicePreferences& preferences) {
  DeviceChoice choice;
  std::vector<Candidate> candidates;
  if (preferences.devices.empty()) {
    candidates = AllPorts(devices, preferences, choice);
  } else {
    SHOAL_ASSIGN_OR_RETURN(candidates, NamedPorts(devices, preferences, choice));
  }
  bool without_index = false;
  bool with_index = false;
  for (const Candidate& candidate : candidates) {
    if (!candidate.port->active) {
      choice.rejected.push_back(fmt::format(
          "{}: its link is down; check the cable and the network interface", NameOf(candidate)));
      continue;
    }
    absl::StatusOr<Rail> rail = MakeRail(candidate, preferences);
    without_index = without_index || absl::IsNotFound(rail.status());
    with_index = with_index || rail.ok();
    if (!rail.ok()) {
      choice.rejected.push_back(fmt::format("{}: {}", NameOf(candidate), Message(rail.status())));
    } else if (std::ssize(choice.rails) >= std::max(1, preferences.max_rails)) {
      choice.rejected.push_back(fmt::format("{}: {} rails are enough (max_rails)",
                                            NameOf(candidate), choice.rails.size()));
    } else {
      choice.rails.push_back(*std::move(rail));
    }
  }
  if (without_index && !with_index) {
    return InvalidArgument("there is no GID of index {}; there are {}", preferences.gid_index,
                           IndicesOf(candidates));
  }
  return choice;
}

}  // namespace shoal::transport

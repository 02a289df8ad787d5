#include "cli/doctor/rdma_checks.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace shoal::cli {
namespace {

using transport::DeviceChoice;
using transport::DeviceDescription;
using transport::LinkLayer;
using transport::Rail;

constexpr int kLargestMtu = 4096;
// Ethernet MTU for the largest RoCE packet: 4096 bytes and headers.
constexpr int kInterfaceMtu = 4200;

std::string Join(const std::vector<std::string>& lines) {
  return fmt::format("{}", fmt::join(lines, "; "));
}

const DeviceDescription& DeviceOf(const RdmaSurvey& survey, const Rail& rail) {
  return *std::ranges::find(survey.census.devices, rail.device, &DeviceDescription::name);
}

// Software devices (soft-RoCE) have no PCI slot.
bool IsHardware(const RdmaSurvey& survey, const Rail& rail) {
  return !DeviceOf(survey, rail).pci_path.empty();
}

std::string InterfaceOf(const RdmaSurvey& survey, const Rail& rail) {
  const auto port = survey.ports.find(PortName(rail.device, rail.port.port));
  if (port == survey.ports.end()) {
    return "";
  }
  const auto interface = port->second.interfaces.find(rail.gids.front().index);
  return interface == port->second.interfaces.end() ? "" : interface->second;
}

Check NoDevice(const RdmaSurvey& survey) {
  Check check{.feature = "RDMA", .health = Health::kMissing};
  if (survey.kernel_devices.empty()) {
    check.detail = "no device in /sys/class/infiniband";
    check.advice = "machines talk over tcp";
    return check;
  }
  check.detail = fmt::format("the kernel has {}, libibverbs shows none",
                             fmt::join(survey.kernel_devices, ", "));
  check.advice =
      survey.device_files
          ? "install the providers (ibverbs-providers, or rdma-core of your distribution)"
          : "/dev/infiniband is empty: load ib_uverbs (modprobe ib_uverbs), and in a container "
            "pass the devices in (RDMA device plugin, or --device /dev/infiniband)";
  return check;
}

Check JudgeDevices(const RdmaSurvey& survey) {
  Check check{.feature = "RDMA"};
  std::vector<std::string> found;
  std::vector<std::string> problems;
  for (const DeviceDescription& device : survey.census.devices) {
    std::vector<std::string> ports;
    for (const transport::PortDescription& port : device.ports) {
      ports.push_back(
          fmt::format("port {} {} {}", port.port,
                      port.link_layer == LinkLayer::kEthernet ? "Ethernet" : "InfiniBand",
                      port.active ? "up" : "down"));
    }
    found.push_back(
        fmt::format("{} ({})", device.name,
                    ports.empty() ? "no port" : fmt::format("{}", fmt::join(ports, ", "))));
    if (!device.problem.empty()) {
      problems.push_back(fmt::format("{}: {}", device.name, device.problem));
    }
  }
  check.detail = Join(found);
  check.advice = Join(problems);
  check.health = problems.empty() ? Health::kOk : Health::kLimited;
  return check;
}

// Containers that share a device see all its GIDs, but can use only those of their own interfaces.
std::string ElsewhereAdvice(const RdmaSurvey& survey, const Rail& rail) {
  const std::string interface = InterfaceOf(survey, rail);
  const auto mtu = survey.interface_mtus.find(interface);
  if (rail.port.link_layer != LinkLayer::kEthernet || interface.empty() ||
      (mtu != survey.interface_mtus.end() && mtu->second > 0)) {
    return "";
  }
  return fmt::format(
      "{}: its address is that of {}, which is not in this network namespace (another "
      "container's?); name one of this container's with --rdma-gid-index, or use hostNetwork",
      rail.device, interface);
}

Check JudgeRails(const RdmaSurvey& survey, const absl::StatusOr<DeviceChoice>& choice) {
  Check check{.feature = "RDMA address"};
  if (!choice.ok()) {
    check.health = Health::kMissing;
    check.detail = "what was asked for is not there";
    check.advice = Message(choice.status());
    return check;
  }
  std::vector<std::string> taken;
  std::vector<std::string> advice = choice->rejected;
  for (const Rail& rail : choice->rails) {
    taken.push_back(fmt::format("{} port {}: {}", rail.device, rail.port.port, rail.reason));
    if (std::string elsewhere = ElsewhereAdvice(survey, rail); !elsewhere.empty()) {
      advice.push_back(std::move(elsewhere));
    }
  }
  check.detail = taken.empty() ? "no port is fit" : Join(taken);
  check.advice = Join(advice);
  if (taken.empty()) {
    check.health = Health::kMissing;
  } else if (!advice.empty()) {
    check.health = Health::kLimited;
  }
  return check;
}

Check JudgeMtu(const RdmaSurvey& survey, const DeviceChoice& choice) {
  Check check{.feature = "RDMA MTU"};
  std::vector<std::string> found;
  std::vector<std::string> advice;
  for (const Rail& rail : choice.rails) {
    found.push_back(fmt::format("{} {}", rail.device, rail.port.mtu_bytes));
    if (rail.port.mtu_bytes >= kLargestMtu) {
      continue;
    }
    const std::string interface = InterfaceOf(survey, rail);
    const auto mtu = survey.interface_mtus.find(interface);
    if (rail.port.link_layer == LinkLayer::kInfiniBand) {
      advice.push_back(
          fmt::format("{}: let the subnet manager give its partition 4096", rail.device));
    } else if (mtu != survey.interface_mtus.end() && mtu->second < kInterfaceMtu) {
      advice.push_back(
          fmt::format("{}: {} has MTU {}; with {} or more here, at the peers and in the switches "
                      "(ip link set {} mtu 9000) packets carry {}",
                      rail.device, interface, mtu->second, kInterfaceMtu, interface, kLargestMtu));
    } else {
      advice.push_back(
          fmt::format("{}: raise its interface's MTU to {} or more", rail.device, kInterfaceMtu));
    }
  }
  check.detail = Join(found) + " bytes";
  check.advice = Join(advice);
  check.health = advice.empty() ? Health::kOk : Health::kLimited;
  return check;
}

Check JudgeWindows(const RdmaSurvey& survey, const DeviceChoice& choice) {
  Check check{.feature = "RDMA memory windows"};
  std::vector<std::string> without;
  for (const Rail& rail : choice.rails) {
    if (!DeviceOf(survey, rail).windows) {
      without.push_back(rail.device);
    }
  }
  check.detail = without.empty() ? "type 2" : fmt::format("none on {}", Join(without));
  if (!without.empty()) {
    check.health = Health::kLimited;
    check.advice =
        "what a client may write is not bound to its connection in the device, so whoever learns "
        "a key of a slot can write it: keep the RDMA network to trusted hosts";
  }
  return check;
}

Check JudgeLockedMemory(const RdmaSurvey& survey, const RdmaNeeds& needs) {
  Check check{.feature = "locked memory (for RDMA)"};
  const transport::LockedMemory& locked = survey.locked;
  check.detail = locked.limit_bytes < 0 ? "unlimited" : FormatBytes(locked.limit_bytes);
  check.detail += locked.capable ? ", IPC_LOCK is in effect" : "";
  const absl::Status enough = transport::CheckLockedMemory(locked, needs.registered_bytes);
  if (enough.ok()) {
    return check;
  }
  check.health = Health::kLimited;
  check.detail +=
      fmt::format("; {} registers {} a process", needs.of_a_job ? "this job" : "a small run",
                  FormatBytes(needs.registered_bytes));
  check.advice = fmt::format(
      "raise the limit (ulimit -l unlimited, LimitMEMLOCK=infinity of a service or of the "
      "container runtime), {}; without, runs take tcp",
      locked.capability_in_reach
          ? "or run as root: the capability IPC_LOCK is in effect for root alone, in a container "
            "too"
          : "or give the container the capability IPC_LOCK and run as root in it");
  return check;
}

// Lists support by device; sets `all` if each has it.
std::string DmaBufText(const RdmaSurvey& survey, const DeviceChoice& choice, bool& all) {
  std::vector<std::string> found;
  all = true;
  for (const Rail& rail : choice.rails) {
    const transport::DmaBufSupport support = survey.DmaBufOf(rail.device);
    all = all && support == transport::DmaBufSupport::kYes;
    found.push_back(fmt::format("{} {}", rail.device,
                                support == transport::DmaBufSupport::kYes  ? "yes"
                                : support == transport::DmaBufSupport::kNo ? "no"
                                                                           : "unknown"));
  }
  return Join(found);
}

Check JudgeGpuMemory(const RdmaSurvey& survey, const DeviceChoice& choice,
                     const std::string& kernel) {
  Check check{.feature = "GPU memory over RDMA"};
  bool dma_buf = false;
  check.detail = fmt::format("dma-buf: {}; nvidia-peermem {}", DmaBufText(survey, choice, dma_buf),
                             survey.peer_memory ? "loaded" : "not loaded");
  if (!dma_buf && !survey.peer_memory) {
    check.health = Health::kLimited;
    check.advice = fmt::format(
        "bytes go through host memory; for dma-buf use a kernel of 5.12 or newer (this is {}), the "
        "open NVIDIA driver and a device driver that knows it (mlx5 does), or modprobe "
        "nvidia-peermem",
        kernel.empty() ? "unknown" : kernel);
  }
  return check;
}

Check JudgeFirewall(const RdmaSurvey& survey, const DeviceChoice& choice) {
  Check check{.feature = "RoCE through firewalls (UDP 4791)"};
  const bool software = std::ranges::any_of(
      choice.rails, [&](const Rail& rail) { return !IsHardware(survey, rail); });
  if (software && survey.packet_filter) {
    check.health = Health::kLimited;
    check.detail = "a packet filter is loaded, and soft-RoCE goes through it";
    check.advice =
        "see that UDP port 4791 may come in: nft list ruleset, or iptables -S, as root; then try "
        "ib_write_bw between the hosts";
  } else if (software) {
    check.detail = "no packet filter is loaded here";
  } else {
    check.detail = "the device goes past this host's packet filter";
    check.advice =
        "what lies between the hosts (security groups, switch rules) must let UDP port 4791 "
        "through; ib_write_bw between two hosts shows it";
  }
  return check;
}

// Sums counters of lost packets and congestion notifications, if the devices keep them.
Check JudgeLossless(const RdmaSurvey& survey, const DeviceChoice& choice) {
  Check check{.feature = "lossless Ethernet (PFC, ECN)"};
  int64_t lost = 0;
  int64_t notified = 0;
  bool known = false;
  for (const Rail& rail : choice.rails) {
    const auto port = survey.ports.find(PortName(rail.device, rail.port.port));
    if (port == survey.ports.end()) {
      continue;
    }
    for (const auto& [name, value] : port->second.counters) {
      known = true;
      if (name == "packet_seq_err" || name == "out_of_sequence" ||
          name == "local_ack_timeout_err") {
        lost += value;
      } else if (name == "np_ecn_marked_roce_packets" || name == "rp_cnp_handled") {
        notified += value;
      }
    }
  }
  if (!known) {
    check.health = Health::kLimited;
    check.detail = "the devices keep no counters that say";
    check.advice = "dcb pfc show dev INTERFACE (or mlnx_qos -i INTERFACE) shows PFC; docs/rdma.md";
    return check;
  }
  check.detail =
      fmt::format("{} packets lost or out of order, {} congestion notifications", lost, notified);
  if (lost > 0) {
    check.health = Health::kLimited;
    check.advice =
        notified > 0
            ? "packets get lost in spite of ECN: see that PFC covers the priority of RoCE in every "
              "switch and host (dcb pfc show dev INTERFACE); docs/rdma.md"
            : "set up ECN or PFC for RoCE in switches and hosts, or losses cost bandwidth; "
              "docs/rdma.md";
  }
  return check;
}

}  // namespace

std::vector<Check> JudgeRdma(const RdmaSurvey& survey, const RdmaNeeds& needs) {
  if (survey.census.devices.empty()) {
    return {NoDevice(survey)};
  }
  const auto choice = transport::ChooseDevices(survey.census.devices, needs.preferences);
  std::vector<Check> checks = {JudgeDevices(survey), JudgeRails(survey, choice),
                               JudgeLockedMemory(survey, needs)};
  if (!choice.ok() || choice->rails.empty()) {
    return checks;
  }
  checks.push_back(JudgeMtu(survey, *choice));
  checks.push_back(JudgeWindows(survey, *choice));
  if (survey.gpus) {
    checks.push_back(JudgeGpuMemory(survey, *choice, survey.kernel));
  }
  const auto ethernet = [](const Rail& rail) {
    return rail.port.link_layer == LinkLayer::kEthernet;
  };
  if (std::ranges::any_of(choice->rails, ethernet)) {
    checks.push_back(JudgeFirewall(survey, *choice));
    if (std::ranges::any_of(choice->rails, [&](const Rail& rail) {
          return ethernet(rail) && IsHardware(survey, rail);
        })) {
      checks.push_back(JudgeLossless(survey, *choice));
    }
  }
  return checks;
}

}  // namespace shoal::cli

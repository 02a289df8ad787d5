// Where RDMA devices, GPUs and this process sit in the machine, as sysfs tells it: what is near
// what. Functions take the folder where sysfs is mounted, so that tests bring one of their own.
//
// A process has a NUMA node when every core that it may run on is of that node, as under numactl,
// or on a machine of one node. Paths are those of /sys/devices, through all bridges from the root,
// so that two devices behind one PCI switch have the switch's part in common.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace shoal::transport {

struct DeviceLocation {
  int numa_node = -1;    // -1: unknown
  std::string pci_path;  // "/sys/devices/pci0000:00/...", "" for a device that sits in no slot
                         // (soft-RoCE)
};

inline constexpr char kSysfs[] = "/sys";

// Of an RDMA device, "mlx5_0".
DeviceLocation LocateRdmaDevice(const std::string& device, const std::string& sysfs = kSysfs);
// Of a PCI function, "0000:1b:00.0", as a GPU's driver gives it.
DeviceLocation LocatePciDevice(const std::string& address, const std::string& sysfs = kSysfs);
// The one that all these cores are of; -1 if they are of several, or sysfs does not say.
int NumaNodeOf(std::span<const int> cores, const std::string& sysfs = kSysfs);
// Those that the calling thread may run on.
std::vector<int> AllowedCores();

// What devices are chosen for.
struct ServedPlace {
  int numa_node = -1;                  // of the GPUs served, else of the process; -1: no one node
  std::vector<std::string> pci_paths;  // of the GPUs served
};
// Of this process and the GPUs at those PCI addresses, which may be none.
ServedPlace FindServedPlace(std::span<const std::string> gpus, const std::string& sysfs = kSysfs);

}  // namespace shoal::transport

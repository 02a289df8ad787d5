// Where RDMA devices, GPUs and this process sit in the machine, according to sysfs: what is near
// what. Functions take the folder where sysfs is mounted, so that tests can bring their own.
//
// A process has a NUMA node if all cores that it may run on belong to that node, as under numactl,
// or on a machine of one node. Paths are those of /sys/devices, through all bridges from the root,
// so that two devices behind one PCI switch share the switch's part.
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

// Locates an RDMA device, e.g. "mlx5_0".
DeviceLocation LocateRdmaDevice(const std::string& device, const std::string& sysfs = kSysfs);
// Locates a PCI function, e.g. "0000:1b:00.0", as a GPU's driver names it.
DeviceLocation LocatePciDevice(const std::string& address, const std::string& sysfs = kSysfs);
// Returns the node to which all these cores belong; -1 if there are several, or sysfs does not say.
int NumaNodeOf(std::span<const int> cores, const std::string& sysfs = kSysfs);
// Returns the cores that the calling thread may run on.
std::vector<int> AllowedCores();

// What devices are chosen for.
struct ServedLocation {
  int numa_node = -1;  // of the GPUs served, else of the process; -1: no single node
  std::vector<std::string> pci_paths;  // of the GPUs served
};
// Finds the place of this process and of the GPUs at those PCI addresses (possibly none).
ServedLocation FindServedLocation(std::span<const std::string> gpus,
                                  const std::string& sysfs = kSysfs);

}  // namespace shoal::transport

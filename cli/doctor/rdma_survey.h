// Facts about RDMA on this machine: devices as libibverbs shows them, and what /sys and /proc say.
// Read once; rdma_checks.h judges them.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/transport/locked_memory.h"
#include "core/transport/verbs/rdma_census.h"

namespace shoal::cli {

struct RdmaPort {
  std::map<int, std::string> interfaces;  // network interface by GID index
  // Kept by some devices since they came up: "packet_seq_err", "np_cnp_sent", ...
  std::map<std::string, int64_t> counters;
};

struct RdmaSurvey {
  std::vector<std::string> kernel_devices;  // in /sys/class/infiniband
  bool device_files = false;                // /dev/infiniband has any
  transport::RdmaCensus census;
  std::map<std::string, RdmaPort> ports;          // "mlx5_0:1"
  std::map<std::string, int64_t> interface_mtus;  // by network interface
  transport::LockedMemory locked;
  bool peer_memory = false;    // the module nvidia-peermem is loaded
  bool packet_filter = false;  // nf_tables or ip_tables is loaded
  bool gpus = false;           // this machine has any
  std::string kernel;          // "Linux 6.1.0"

  transport::DmaBufSupport DmaBufOf(const std::string& device) const;
};

// Names a device's port in RdmaSurvey::ports.
std::string PortName(const std::string& device, int port);

// Prefixes /proc, /sys and /dev with `root`, for tests. `census` is what libibverbs said.
RdmaSurvey ExamineRdma(const std::string& root, transport::RdmaCensus census);

}  // namespace shoal::cli

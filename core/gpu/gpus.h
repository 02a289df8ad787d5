// Which GPUs there are and what they are like: for whoever chooses one, and for `shoal doctor`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::gpu {

struct GpuDescription {
  int index = 0;
  std::string name;          // "NVIDIA H200"
  int64_t memory_bytes = 0;  // in all
  int capability = 0;        // 10 major + minor: 90
  int multiprocessors = 0;
  int64_t shared_bytes = 0;  // a block's at most, once it has asked for it
  int64_t l2_bytes = 0;
  std::string pci_address;  // "0000:41:00.0"
  std::string pci_link;     // "32.0 GT/s PCIe x16", as it runs now; empty where it is not told
  int numa_node = -1;       // -1: not told
  // What names it among those of all machines; zeros: not told.
  std::array<char, 16> uuid = {};
};

struct GpuDescriptions {
  int driver_version = 0;   // of CUDA that the driver knows: 13000
  int runtime_version = 0;  // of CUDA that this program is built with
  std::vector<GpuDescription> gpus;
};

// All GPUs that this process sees. NotFound where there is no driver or no GPU, with the reason.
absl::StatusOr<GpuDescriptions> DescribeGpus();

// One of them. NotFound where it is not there.
absl::StatusOr<GpuDescription> DescribeGpu(int index);

// What is free of its memory now that this process has its part of the driver's there.
absl::StatusOr<int64_t> FreeBytes(const GpuDescription& gpu);

// FailedPrecondition where our kernels do not run on it.
absl::Status CheckSupported(const GpuDescription& gpu);

}  // namespace shoal::gpu

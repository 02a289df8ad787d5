// The machine's GPUs and their properties: for choosing one, and for `shoal doctor`.
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
  int64_t memory_bytes = 0;  // total
  int capability = 0;        // 10 major + minor: 90
  int multiprocessors = 0;
  int64_t shared_bytes = 0;  // the most that a block may request
  int64_t l2_bytes = 0;
  std::string pci_address;  // "0000:41:00.0"
  std::string pci_link;     // "32.0 GT/s PCIe x16", as it runs now; empty if unknown
  int numa_node = -1;       // -1: unknown
  // Identifies it among the GPUs of all machines; zeros: unknown.
  std::array<char, 16> uuid = {};
};

struct GpuDescriptions {
  int driver_version = 0;   // of CUDA that the driver supports: 13000
  int runtime_version = 0;  // of CUDA with which this program is built
  std::vector<GpuDescription> gpus;
};

// Returns all GPUs that this process sees. NotFound, with the reason, if there is no driver or no
// GPU.
absl::StatusOr<GpuDescriptions> DescribeGpus();

// Returns one of them; NotFound if it does not exist.
absl::StatusOr<GpuDescription> DescribeGpu(int index);

// Returns how much of its memory is free, after the driver's part for this process.
absl::StatusOr<int64_t> FreeBytes(const GpuDescription& gpu);

// FailedPrecondition if our kernels do not run on it.
absl::Status CheckSupported(const GpuDescription& gpu);

}  // namespace shoal::gpu

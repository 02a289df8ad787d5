#include "core/gpu/gpus.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <fstream>

#include "core/base/status.h"
#include "core/gpu/cuda_status.h"

namespace shoal::gpu {
namespace {

// bf16 on tensor cores and asynchronous copies to shared memory: Ampere.
constexpr int kLeastCapability = 80;

// Reads a line of the kernel's file about a PCI device; empty if there is none.
std::string PciFile(const std::string& address, const std::string& name) {
  std::string lower = address;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  std::ifstream file("/sys/bus/pci/devices/" + lower + "/" + name);
  std::string line;
  std::getline(file, line);
  return line;
}

GpuDescription Describe(int index, const cudaDeviceProp& properties) {
  GpuDescription gpu{.index = index,
                     .name = properties.name,
                     .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
                     .capability = 10 * properties.major + properties.minor,
                     .multiprocessors = properties.multiProcessorCount,
                     .shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin),
                     .l2_bytes = properties.l2CacheSize};
  static_assert(sizeof(properties.uuid.bytes) == sizeof(gpu.uuid));
  std::ranges::copy(properties.uuid.bytes, gpu.uuid.begin());
  std::array<char, 32> address{};
  if (cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), index) !=
      cudaSuccess) {
    (void)cudaGetLastError();
    return gpu;
  }
  gpu.pci_address = address.data();
  const std::string speed = PciFile(gpu.pci_address, "current_link_speed");
  const std::string width = PciFile(gpu.pci_address, "current_link_width");
  if (!speed.empty() && !width.empty()) {
    gpu.pci_link = speed + " x" + width;
  }
  const std::string node = PciFile(gpu.pci_address, "numa_node");
  std::from_chars(node.data(), node.data() + node.size(), gpu.numa_node);
  return gpu;
}

absl::StatusOr<int> CountGpus() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return ToStatus(error, -1, "counting GPUs");
  }
  return count;
}

}  // namespace

absl::StatusOr<GpuDescription> DescribeGpu(int index) {
  SHOAL_ASSIGN_OR_RETURN(const int count, CountGpus());
  if (index < 0 || index >= count) {
    return NotFound("cuda:{}: there is no such GPU, this process sees {}; see CUDA_VISIBLE_DEVICES",
                    index, count);
  }
  cudaDeviceProp properties{};
  SHOAL_RETURN_IF_ERROR(
      ToStatus(cudaGetDeviceProperties(&properties, index), index, "asking for its properties"));
  return Describe(index, properties);
}

absl::StatusOr<GpuDescriptions> DescribeGpus() {
  SHOAL_ASSIGN_OR_RETURN(const int count, CountGpus());
  GpuDescriptions all;
  SHOAL_RETURN_IF_ERROR(
      ToStatus(cudaDriverGetVersion(&all.driver_version), -1, "asking for its version"));
  SHOAL_RETURN_IF_ERROR(
      ToStatus(cudaRuntimeGetVersion(&all.runtime_version), -1, "asking for its version"));
  for (int index = 0; index < count; ++index) {
    SHOAL_ASSIGN_OR_RETURN(GpuDescription gpu, DescribeGpu(index));
    all.gpus.push_back(std::move(gpu));
  }
  return all;
}

absl::StatusOr<int64_t> FreeBytes(const GpuDescription& gpu) {
  SHOAL_RETURN_IF_ERROR(ToStatus(cudaSetDevice(gpu.index), gpu.index, "making it current"));
  size_t free = 0;
  size_t total = 0;
  SHOAL_RETURN_IF_ERROR(
      ToStatus(cudaMemGetInfo(&free, &total), gpu.index, "asking for what memory is free"));
  return static_cast<int64_t>(free);
}

absl::Status CheckSupported(const GpuDescription& gpu) {
  if (gpu.capability < kLeastCapability) {
    return FailedPrecondition(
        "cuda:{} ({}): compute capability {}.{}, but {}.{} is needed (Ampere or later); use "
        "another GPU, or none (train.device: cpu, service.memory: host)",
        gpu.index, gpu.name, gpu.capability / 10, gpu.capability % 10, kLeastCapability / 10,
        kLeastCapability % 10);
  }
  return absl::OkStatus();
}

}  // namespace shoal::gpu

// What a worker computes on: the CPU, or one of this machine's GPUs if the build has CUDA. One
// program starts everywhere; what is missing is reported when it is asked for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/gpu/gpus.h"
#include "core/job/device_kind.h"
#include "core/transport/gpu_memory.h"
#include "worker/collectives/collectives.h"
#include "worker/ops/compute_device.h"

namespace shoal::worker {

struct DeviceRequest {
  plan::DeviceKind kind = plan::DeviceKind::kAuto;
  int gpu = 0;      // as numbered in this process; with kCuda
  int sharing = 1;  // workers that share the GPU's memory equally
  int threads = 0;  // for the CPU; 0: one for each available core
  // The same input gives the same bits. Otherwise a GPU may add in any order if that is faster.
  bool deterministic = false;
};

using CollectivesOpener =
    std::function<absl::StatusOr<std::unique_ptr<Collectives>>(const Device& device)>;

struct OpenedDevice {
  ComputeDevice compute_device;
  // For transports to reach the memory of a GPU; null: they do not.
  std::shared_ptr<transport::GpuMemory> reach;
  // Opens the library through which its GPU exchanges with other workers', loading it when called.
  // Empty: this build has none.
  CollectivesOpener open_collectives;
  // Identifies its GPU among those of all machines; empty: it has none.
  std::string gpu_name;
  // Share of the GPU's memory, according to DeviceRequest::sharing.
  int64_t gpu_share_bytes = 0;
};

// Returns all GPUs that this process sees, as DescribeGpus. Unimplemented in a build without CUDA.
absl::StatusOr<gpu::GpuDescriptions> FindGpus();
// OK, or why we cannot compute on that GPU.
absl::Status CheckUsable(const gpu::GpuDescription& gpu);
// Same as gpu::FreeBytes.
absl::StatusOr<int64_t> FreeGpuBytes(const gpu::GpuDescription& gpu);
// Returns the numbers of the GPUs on which we can compute.
std::vector<int> UsableGpus();

// kAuto: the first GPU on which we can compute, else the CPU. Errors say why a requested GPU is not
// available.
absl::StatusOr<OpenedDevice> OpenDevice(const DeviceRequest& request);

}  // namespace shoal::worker

// What a worker computes on: the CPU, or one of this machine's GPUs where the build has CUDA. One
// program starts everywhere; what is missing is told when it is asked for.
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
#include "worker/ops/machine.h"

namespace shoal::worker {

struct MachineRequest {
  plan::DeviceKind kind = plan::DeviceKind::kAuto;
  int gpu = 0;      // as this process counts them; with kCuda
  int sharing = 1;  // workers that share the GPU, each as much of its memory
  int threads = 0;  // of the CPU; 0: one for each available core
  // The same input gives the same bits. Where it need not, a GPU may add in any order if that is
  // faster.
  bool deterministic = false;
};

using CollectivesOpener =
    std::function<absl::StatusOr<std::unique_ptr<Collectives>>(const Device& device)>;

struct OpenedMachine {
  Machine machine;
  // By which transports reach the memory of a GPU; null: they do not.
  std::shared_ptr<transport::GpuMemory> reach;
  // By which its GPU exchanges with those of other workers; looks for the library when it is
  // called. Empty: the build is without.
  CollectivesOpener open_collectives;
  // Of its GPU among those of all machines; empty: it has none.
  std::string gpu_name;
  // Of the GPU's memory, with MachineRequest::sharing.
  int64_t gpu_share_bytes = 0;
};

// All GPUs that this process sees, as DescribeGpus. Unimplemented in a build without CUDA.
absl::StatusOr<gpu::GpuDescriptions> FindGpus();
// Why we cannot compute on one of them, or OK.
absl::Status CheckUsable(const gpu::GpuDescription& gpu);
// As gpu::FreeBytes.
absl::StatusOr<int64_t> FreeGpuBytes(const gpu::GpuDescription& gpu);
// Of those, the numbers of the ones that we can compute on.
std::vector<int> UsableGpus();

// kAuto: the first GPU that we can compute on, else the CPU. Errors say why a GPU that was asked
// for is not to be had.
absl::StatusOr<OpenedMachine> OpenMachine(const MachineRequest& request);

}  // namespace shoal::worker

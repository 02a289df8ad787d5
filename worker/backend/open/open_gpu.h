// What open_machine.h needs of CUDA: the two builds link with_cuda.cc or without_cuda.cc.
#pragma once

#include "absl/status/statusor.h"
#include "worker/backend/open/open_machine.h"

namespace shoal::worker {

// Opens the GPU request.gpu, and what transports use to reach its memory.
absl::StatusOr<OpenedMachine> OpenGpu(const MachineRequest& request);

// OpenedMachine::open_collectives, from with_nccl.cc or without_nccl.cc.
CollectivesOpener FindCollectives();

}  // namespace shoal::worker

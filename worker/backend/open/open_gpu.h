// What open_machine.h needs of CUDA: with_cuda.cc and without_cuda.cc are the two builds' ways.
#pragma once

#include "absl/status/statusor.h"
#include "worker/backend/open/open_machine.h"

namespace shoal::worker {

// That of request.gpu, and what transports reach its memory by.
absl::StatusOr<OpenedMachine> OpenGpu(const MachineRequest& request);

// OpenedMachine::open_collectives, by with_nccl.cc or without_nccl.cc.
CollectivesOpener FindCollectives();

}  // namespace shoal::worker

// What open_machine.h needs of CUDA: with_cuda.cc and without_cuda.cc are the two builds' ways.
#pragma once

#include "absl/status/statusor.h"
#include "worker/ops/machine.h"

namespace shoal::worker {

absl::StatusOr<Machine> OpenGpu(int gpu);

}  // namespace shoal::worker

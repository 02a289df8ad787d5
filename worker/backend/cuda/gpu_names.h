// The worker's code for GPUs is written in the words of gpu/: it has them as if they were its own.
#pragma once

namespace shoal::gpu {}

namespace shoal::worker::cuda {
using namespace gpu;  // NOLINT(google-build-using-namespace)
}  // namespace shoal::worker::cuda

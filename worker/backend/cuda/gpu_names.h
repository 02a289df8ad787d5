// Makes the names of gpu/ available to the worker's GPU code.
#pragma once

namespace shoal::gpu {}

namespace shoal::worker::cuda {
using namespace gpu;  // NOLINT(google-build-using-namespace)
}  // namespace shoal::worker::cuda

// The kernels that a server with its partitions on a GPU uses.
#pragma once

#include "bench/gpu_check/base/flat_kernels.h"

namespace shoal::bench {

// For streams of MakeGpuComputeDevice's devices.
const FlatKernels& GpuFlatKernels();

}  // namespace shoal::bench

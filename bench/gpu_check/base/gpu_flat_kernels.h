// The kernels of a server whose partitions are on a GPU.
#pragma once

#include "bench/gpu_check/base/flat_kernels.h"

namespace shoal::bench {

// For streams of MakeGpuComputeDevice's devices.
const FlatKernels& GpuFlatKernels();

}  // namespace shoal::bench

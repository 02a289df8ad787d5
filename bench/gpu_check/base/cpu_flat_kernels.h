// The servers' own kernels, for devices whose memory the host can access.
#pragma once

#include "bench/gpu_check/base/flat_kernels.h"

namespace shoal::bench {

const FlatKernels& CpuFlatKernels();

}  // namespace shoal::bench

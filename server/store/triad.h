// The streaming triad that the store's kernels are compared with.
#pragma once

#include <cstdint>

#include "server/store/kernel_width.h"

namespace shoal::server {

// a[i] = b[i] + scale * c[i]
using TriadKernel = void (*)(const float* b, const float* c, float scale, float* a, int64_t count);
TriadKernel GetTriadKernel(KernelWidth width = BestKernelWidth());

}  // namespace shoal::server

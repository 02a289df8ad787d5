// Describes a crash: which thread of which block touched what, or that the host touched a GPU's
// memory. Only the fake includes it.
#pragma once

namespace shoal::gpu::fake_cuda {

// From now on, segmentation faults of the process and integer overflows in kernels are described in
// a line on standard error before they end it, unless a sanitizer handles them. Each thread that
// runs blocks calls this, so that overflows of its fibers' stacks are described too.
void DescribeFaults();

}  // namespace shoal::gpu::fake_cuda

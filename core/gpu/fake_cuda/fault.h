// What a crash was about: which thread of which block touched what, or the host a GPU's memory.
// Included by the emulation alone.
#pragma once

namespace shoal::gpu::emulation {

// Segmentation faults of the process, and integers that overflow in kernels, are described in a
// line on standard error before they end it, once this has been called; where a sanitizer handles
// them, that is left to it. Each thread that runs blocks calls it, so that overflows of its fibers'
// stacks are told too.
void DescribeFaults();

}  // namespace shoal::gpu::emulation

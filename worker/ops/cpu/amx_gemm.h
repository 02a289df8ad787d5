// Products of bf16 matrices on AMX, the matrix unit of newer x86 servers.
//
// oneDNN 2.6 uses the unit too, but packs B again for every call, transposes A element by element,
// and compiles every shape: at the shapes of training it reaches a third of the unit's speed. Here
// operands are packed into tiles (A in blocks that stay in the second-level cache, B whole up to 16
// MiB), and four tiles of C stay in registers over the whole of k. Each thread keeps its memory for
// them.
#pragma once

#include "worker/ops/cpu/gemm_shape.h"

namespace shoal::worker::cpu {

// Whether this CPU has AMX with bf16 and the kernel lets this process use it. Checked once.
bool HasAmx();
// Whether to use AmxGemm for this product: bf16 on such a CPU, and not so thin that most of a tile
// would be empty.
bool AmxTakes(const GemmShape& shape);

// Computes the product of `shape` on the calling thread. Sums are fp32, in the order of k. May
// throw std::bad_alloc.
void AmxGemm(const GemmShape& shape, const void* a, const void* b, void* c);

}  // namespace shoal::worker::cpu

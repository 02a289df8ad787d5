// The CPU's instructions for bf16 products, as oneDNN finds them (it obeys ONEDNN_MAX_CPU_ISA).
#pragma once

namespace shoal::worker::cpu {

// Whether this CPU multiplies bf16 natively (AVX512-BF16 or AMX), and oneDNN has kernels for it.
bool HasNativeBf16();
// Whether its widest kernels are those of AMX with bf16.
bool HasAmxInstructions();

}  // namespace shoal::worker::cpu

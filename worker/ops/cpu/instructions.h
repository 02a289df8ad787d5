// The CPU's instructions, as oneDNN finds them (it obeys ONEDNN_MAX_CPU_ISA).
#pragma once

#include <string>

namespace shoal::worker::cpu {

// Whether this CPU multiplies bf16 natively (AVX512-BF16 or AMX), and oneDNN has kernels for it.
bool HasNativeBf16();
// Whether oneDNN has kernels for products of bf16, native or not: it wants AVX-512.
bool OneDnnMultipliesBf16();
// Whether its widest kernels are those of AMX with bf16.
bool HasAmxInstructions();
// The widest that operators take, "x86-64-v4, oneDNN avx512_core_amx": workers where they differ
// may round otherwise.
std::string WidestInstructions();

}  // namespace shoal::worker::cpu

#include "worker/ops/cpu/instructions.h"

#include "oneapi/dnnl/dnnl.hpp"

namespace shoal::worker::cpu {
namespace {

// ISA values are bit sets in which a wider instruction set contains the narrower.
bool Has(dnnl::cpu_isa isa) {
  const auto effective = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
  const auto asked = static_cast<unsigned>(isa);
  return (effective & asked) == asked;
}

}  // namespace

bool HasNativeBf16() { return Has(dnnl::cpu_isa::avx512_core_bf16); }

bool HasAmxInstructions() { return Has(dnnl::cpu_isa::avx512_core_amx); }

}  // namespace shoal::worker::cpu

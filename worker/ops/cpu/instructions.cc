#include "worker/ops/cpu/instructions.h"

#include <string_view>

#include "core/base/simd.h"
#include "fmt/format.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "oneapi/dnnl/dnnl_debug.h"

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

bool OneDnnMultipliesBf16() { return Has(dnnl::cpu_isa::avx512_core); }

bool HasAmxInstructions() { return Has(dnnl::cpu_isa::avx512_core_amx); }

std::string WidestInstructions() {
  constexpr std::string_view kPrefix = "cpu_isa_";
  const auto effective = static_cast<dnnl_cpu_isa_t>(dnnl::get_effective_cpu_isa());
  std::string_view name = dnnl_cpu_isa2str(effective);
  if (name.starts_with(kPrefix)) {
    name.remove_prefix(kPrefix.size());
  }
  return fmt::format("{}, oneDNN {}", Name(BestKernelWidth()), name);
}

}  // namespace shoal::worker::cpu

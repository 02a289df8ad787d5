// Kernels exist in several vector widths; the CPU's features decide at run time which one runs, so
// one build starts everywhere. All widths give the same bits: every element is computed by itself
// with the same IEEE operations (-ffp-contract=off), and reductions keep a fixed number of partial
// sums whatever the width. Tests run them all.
#pragma once

#include <string_view>
#include <vector>

#if defined(__x86_64__)
#define SHOAL_HAS_WIDE_KERNELS 1
#if defined(__clang__)
#define SHOAL_WIDE_KERNEL __attribute__((target("arch=x86-64-v4")))
#else
#define SHOAL_WIDE_KERNEL __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#endif
#else
#define SHOAL_HAS_WIDE_KERNELS 0
#endif
// For the single body from which every width is compiled.
#define SHOAL_KERNEL_BODY inline __attribute__((always_inline))

namespace shoal::server {

enum class KernelWidth { kBaseline, kWide };

inline std::string_view Name(KernelWidth width) {
  return width == KernelWidth::kWide ? "x86-64-v4" : "baseline";
}

// Returns the widths that this CPU can run, narrowest first.
inline std::vector<KernelWidth> AvailableKernelWidths() {
#if SHOAL_HAS_WIDE_KERNELS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return {KernelWidth::kBaseline, KernelWidth::kWide};
  }
#endif
  return {KernelWidth::kBaseline};
}

inline KernelWidth BestKernelWidth() {
  static const KernelWidth kBest = AvailableKernelWidths().back();
  return kBest;
}

}  // namespace shoal::server

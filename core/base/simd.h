// Kernels in wide vectors. A kernel is a struct with a static, always inlined Run, written as plain
// loops that the compiler vectorises, for the portable baseline and for AVX-512. The CPU's features
// decide at run time which one runs, so one build starts everywhere.
//
// Both widths give the same bits where every element is computed by itself with the same IEEE
// operations (-ffp-contract=off), and sums keep a fixed number of partial sums.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

// For Run and what it calls.
#define SHOAL_INLINE [[gnu::always_inline]] static inline

#if !defined(__x86_64__)
#define SHOAL_TARGET_WIDE [[gnu::noinline]]
#elif defined(__clang__)
#define SHOAL_TARGET_WIDE [[gnu::noinline, gnu::target("arch=x86-64-v4")]]
#else
#define SHOAL_TARGET_WIDE [[gnu::noinline, gnu::target("arch=x86-64-v4,prefer-vector-width=512")]]
#endif

namespace shoal {

enum class KernelWidth { kBaseline, kWide };

inline std::string_view Name(KernelWidth width) {
  return width == KernelWidth::kWide ? "x86-64-v4" : "baseline";
}

// Returns the widths that this CPU can run, narrowest first.
inline std::vector<KernelWidth> AvailableKernelWidths() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return {KernelWidth::kBaseline, KernelWidth::kWide};
  }
#endif
  return {KernelWidth::kBaseline};
}

inline KernelWidth BestKernelWidth() {
  static const KernelWidth best = AvailableKernelWidths().back();
  return best;
}

// These can also be taken as function pointers, for tables of kernels.
template <typename Kernel, typename... Args>
[[gnu::noinline]] auto RunBaseline(Args... args) -> decltype(Kernel::Run(std::declval<Args>()...)) {
  return Kernel::Run(args...);
}
template <typename Kernel, typename... Args>
SHOAL_TARGET_WIDE auto RunWide(Args... args) -> decltype(Kernel::Run(std::declval<Args>()...)) {
  return Kernel::Run(args...);
}

// Runs the widest version that this CPU has.
template <typename Kernel, typename... Args>
void Dispatch(Args... args) {
  BestKernelWidth() == KernelWidth::kWide ? RunWide<Kernel, Args...>(args...)
                                          : RunBaseline<Kernel, Args...>(args...);
}

}  // namespace shoal

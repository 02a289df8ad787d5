// Helps launch functions choose among the instances of a kernel: by element type, and by whether
// memory may be read 16 bytes at a time. Host code of kernel files.
#pragma once

#include <type_traits>

#include "core/gpu/kernel/element.h"
#include "core/gpu/kernel/kernel.h"

namespace shoal::gpu {

constexpr int64_t SizeOf(Element element) { return element == Element::kF32 ? 4 : 2; }

// Number of elements in 16 bytes.
template <typename T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

// Whether it starts at a multiple of `bytes`.
inline bool Takes(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

// Calls function.operator()<float>() or <Bf16>().
template <typename Function>
cudaError_t WithElement(Element element, const Function& function) {
  return element == Element::kF32 ? function.template operator()<float>()
                                  : function.template operator()<Bf16>();
}

}  // namespace shoal::gpu

// How launch functions choose among the instances of a kernel: by element type, and by whether rows
// may be read 16 bytes at a time. Host code of kernel files.
#pragma once

#include <type_traits>

#include "worker/backend/cuda/kernel.h"
#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

constexpr int64_t SizeOf(Element element) { return element == Element::kF32 ? 4 : 2; }

// Elements that 16 bytes hold.
template <typename T>
inline constexpr int kWide = 16 / static_cast<int>(sizeof(T));

// Whether chunks of `count` elements of every row start at multiples of their size.
inline bool Takes(const ConstView& view, int64_t count) {
  const auto bytes = static_cast<uintptr_t>(count * SizeOf(view.element));
  return view.columns % count == 0 && view.stride % count == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % bytes == 0;
}
inline bool Takes(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

template <int kValue>
using Constant = std::integral_constant<int, kValue>;

// function.operator()<float>() or <Bf16>().
template <typename Function>
cudaError_t WithElement(Element element, const Function& function) {
  return element == Element::kF32 ? function.template operator()<float>()
                                  : function.template operator()<Bf16>();
}

// launch(count) with the elements that all of `views` can be read by at once: `kCount` or one.
template <int kCount, typename Launcher, typename... Views>
cudaError_t WithCount(const Launcher& launch, const Views&... views) {
  return (Takes(views, kCount) && ...) ? launch(Constant<kCount>()) : launch(Constant<1>());
}

}  // namespace shoal::worker::cuda

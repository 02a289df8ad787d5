// Helps launch functions choose among the instances of a kernel by whether rows of matrices may be
// read 16 bytes at a time; core/gpu/kernel/dispatch.h has the rest. Host code of kernel files.
#pragma once

#include "core/gpu/kernel/dispatch.h"
#include "worker/backend/cuda/gpu_names.h"
#include "worker/ops/cuda/kernels/view.h"

namespace shoal::worker::cuda {

using gpu::Takes;

// Whether chunks of `count` elements of every row start at multiples of their size.
inline bool Takes(const ConstView& view, int64_t count) {
  const int64_t bytes = count * SizeOf(view.element);
  return view.columns % count == 0 && view.stride % count == 0 && Takes(view.data, bytes);
}

// Calls launch(count) with the elements by which all of `views` can be read at once: `kCount` or
// one.
template <int kCount, typename Launcher, typename... Views>
cudaError_t WithCount(const Launcher& launch, const Views&... views) {
  return (Takes(views, kCount) && ...) ? launch(Constant<kCount>()) : launch(Constant<1>());
}

}  // namespace shoal::worker::cuda

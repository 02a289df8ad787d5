// The arguments of kernels' launch functions: plain views of device memory, for host code that
// knows worker/ops/tensor.h and device code that does not.
#pragma once

#include <cstdint>

#include "core/gpu/kernel/element.h"
#include "worker/backend/cuda/gpu_names.h"

namespace shoal::worker::cuda {

// Row-major; `stride` in elements.
struct ConstView {
  const void* data = nullptr;
  Element element = Element::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
};

struct View {
  void* data = nullptr;
  Element element = Element::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  // A View converts to a ConstView.
  operator ConstView() const { return {data, element, rows, columns, stride}; }  // NOLINT
};

}  // namespace shoal::worker::cuda

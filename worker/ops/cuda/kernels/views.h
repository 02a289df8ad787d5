// Converts matrices of worker/ops/tensor.h to the arguments of launch functions.
#pragma once

#include "core/base/check.h"
#include "worker/ops/cuda/kernels/view.h"
#include "worker/ops/tensor.h"

namespace shoal::worker::cuda {

inline Element ToElement(DType dtype) {
  SHOAL_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  return dtype == DType::kF32 ? Element::kF32 : Element::kBf16;
}
inline View ToView(const Matrix& m) {
  return {m.data, ToElement(m.dtype), m.rows, m.columns, m.stride};
}
inline ConstView ToView(const ConstMatrix& m) {
  return {m.data, ToElement(m.dtype), m.rows, m.columns, m.stride};
}

// The view whose rows are each of `parts` equal parts of a row.
template <typename AnyView>
AnyView PartsOf(AnyView view, int64_t parts) {
  view.rows *= parts;
  view.columns /= parts;
  return view;
}

inline bool SameShape(const ConstMatrix& a, const ConstMatrix& b) {
  return a.rows == b.rows && a.columns == b.columns && a.dtype == b.dtype;
}
inline bool IsEmpty(const ConstMatrix& m) { return m.rows == 0 || m.columns == 0; }

}  // namespace shoal::worker::cuda

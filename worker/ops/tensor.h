// Views of device memory that operators take; they own nothing. Matrices are row-major; `stride` is
// in elements, so a range of columns of a wider matrix is a view too (the q, k and v parts of one
// qkv matrix).
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"

namespace shoal::worker {

struct Matrix {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  static Matrix Dense(void* data, DType dtype, int64_t rows, int64_t columns) {
    return {data, dtype, rows, columns, columns};
  }
  template <typename T>
  T* row(int64_t index) const {
    return static_cast<T*>(data) + index * stride;
  }
  Matrix Rows(int64_t begin, int64_t count) const {
    return {static_cast<std::byte*>(data) + begin * stride * SizeOf(dtype), dtype, count, columns,
            stride};
  }
  Matrix Columns(int64_t begin, int64_t count) const {
    return {static_cast<std::byte*>(data) + begin * SizeOf(dtype), dtype, rows, count, stride};
  }
};

struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;

  ConstMatrix() = default;
  ConstMatrix(const void* data_in, DType dtype_in, int64_t rows_in, int64_t columns_in,
              int64_t stride_in)
      : data(data_in), dtype(dtype_in), rows(rows_in), columns(columns_in), stride(stride_in) {}
  // A Matrix converts to a ConstMatrix.
  ConstMatrix(const Matrix& m)
      : ConstMatrix(m.data, m.dtype, m.rows, m.columns, m.stride) {}  // NOLINT

  static ConstMatrix Dense(const void* data, DType dtype, int64_t rows, int64_t columns) {
    return {data, dtype, rows, columns, columns};
  }
  template <typename T>
  const T* row(int64_t index) const {
    return static_cast<const T*>(data) + index * stride;
  }
  ConstMatrix Rows(int64_t begin, int64_t count) const {
    return {static_cast<const std::byte*>(data) + begin * stride * SizeOf(dtype), dtype, count,
            columns, stride};
  }
  ConstMatrix Columns(int64_t begin, int64_t count) const {
    return {static_cast<const std::byte*>(data) + begin * SizeOf(dtype), dtype, rows, count,
            stride};
  }
};

struct ConstVector {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t count = 0;
};

// What a norm multiplies by: a vector, plus an offset that is the same for all elements.
struct NormWeight {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t count = 0;
  float offset = 0;

  NormWeight(const void* data_in, DType dtype_in, int64_t count_in, float offset_in = 0)
      : data(data_in), dtype(dtype_in), count(count_in), offset(offset_in) {}
  // A ConstVector converts to a NormWeight.
  NormWeight(const ConstVector& v, float offset_in = 0)
      : NormWeight(v.data, v.dtype, v.count, offset_in) {}  // NOLINT
};

}  // namespace shoal::worker

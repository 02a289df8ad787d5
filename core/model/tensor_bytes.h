// Adds up the tensors of a microbatch as a worker's memory lays them out, one after the other.
#pragma once

#include <cstdint>

#include "core/base/bytes.h"
#include "core/base/dtype.h"

namespace shoal::plan {

class TensorBytes {
 public:
  TensorBytes(DType compute, int64_t rows) : element_(SizeOf(compute)), rows_(rows) {}

  // [rows, columns] of the compute type.
  TensorBytes& Matrix(int64_t columns) { return Bytes(rows_ * columns * element_); }
  TensorBytes& Floats(int64_t per_row) { return Bytes(rows_ * per_row * 4); }
  TensorBytes& Bytes(int64_t bytes) {
    bytes_ += RoundUp(bytes, kAlignment);
    return *this;
  }
  int64_t bytes() const { return bytes_; }

 private:
  static constexpr int64_t kAlignment = 64;

  const int64_t element_;
  const int64_t rows_;
  int64_t bytes_ = 0;
};

}  // namespace shoal::plan

// Memory for one microbatch's activations: one buffer of the device, carved from front to back, and
// kept for the next microbatch. It grows only when a larger microbatch comes.
//
// Work on a single stream uses it; the next microbatch may be enqueued there before the last one is
// done.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "core/base/bytes.h"
#include "worker/backend/backend.h"
#include "worker/ops/tensor.h"

namespace shoal::worker {

// Hands out aligned pieces one after the other. Over no memory it only measures: the same carving
// code run twice, first over none and then over `bytes()` of it, sizes and fills a workspace
// without a formula that could disagree.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  std::byte* Take(int64_t bytes) {
    std::byte* piece = base_ == nullptr ? nullptr : base_ + used_;
    used_ += RoundUp(bytes, kBufferAlignment);
    return piece;
  }
  template <typename T>
  T* TakeArray(int64_t count) {
    return reinterpret_cast<T*>(Take(count * static_cast<int64_t>(sizeof(T))));
  }
  Matrix TakeMatrix(DType dtype, int64_t rows, int64_t columns) {
    return Matrix::Dense(Take(rows * columns * SizeOf(dtype)), dtype, rows, columns);
  }
  int64_t bytes() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

class Workspace {
 public:
  // `stream` is the one that uses it.
  Workspace(Device& device, Stream& stream) : device_(device), stream_(stream) {}

  // Calls carve(Carver&) to measure, ensures the memory, and returns the result of carve(Carver&)
  // over it. Voids what earlier calls returned.
  template <typename Carve>
  auto Fill(const Carve& carve) -> absl::StatusOr<decltype(carve(std::declval<Carver&>()))> {
    Carver measure(nullptr);
    static_cast<void>(carve(measure));
    if (absl::Status status = Reserve(measure.bytes()); !status.ok()) {
      return status;
    }
    Carver carver(buffer_.data());
    return carve(carver);
  }
  int64_t bytes() const { return buffer_.bytes(); }

 private:
  absl::Status Reserve(int64_t bytes);

  Device& device_;
  Stream& stream_;
  Buffer buffer_;
};

}  // namespace shoal::worker

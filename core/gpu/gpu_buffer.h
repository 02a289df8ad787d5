// Memory straight from the driver, for what is allocated once and kept: GPU memory, pinned host
// memory, and the caller's memory, pinned as long as needed. Use CachingPool for pieces that come
// and go.
//
// Must not outlive the context. Enqueue no new work that uses it before its destruction, which
// waits for what is left on the context's streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "absl/status/statusor.h"
#include "core/gpu/cuda_context.h"

namespace shoal::gpu {

class GpuBuffer {
 public:
  enum class Kind : uint8_t { kDevice, kPinnedHost };

  GpuBuffer() = default;
  // ResourceExhausted if there is not that much. `bytes` 0: none.
  static absl::StatusOr<GpuBuffer> Allocate(CudaContext& context, Kind kind, int64_t bytes);
  ~GpuBuffer();
  GpuBuffer(GpuBuffer&& other) noexcept { *this = std::move(other); }
  GpuBuffer& operator=(GpuBuffer&& other) noexcept;

  // Returns the memory from that offset in bytes on, as an array of T.
  template <typename T>
  T* as(int64_t byte_offset = 0) const {
    return reinterpret_cast<T*>(data_ + byte_offset);
  }

 private:
  CudaContext* context_ = nullptr;
  Kind kind_ = Kind::kDevice;
  std::byte* data_ = nullptr;
};

class PinnedRange {
 public:
  // Fails if the memory cannot be pinned (locked memory, an odd kind).
  static absl::StatusOr<PinnedRange> Pin(CudaContext& context, std::span<std::byte> memory);
  ~PinnedRange();
  PinnedRange(PinnedRange&& other) noexcept
      : context_(other.context_), data_(std::exchange(other.data_, nullptr)) {}
  PinnedRange& operator=(PinnedRange&&) = delete;

 private:
  PinnedRange(CudaContext& context, std::byte* data) : context_(&context), data_(data) {}
  CudaContext* context_;
  std::byte* data_;
};

}  // namespace shoal::gpu

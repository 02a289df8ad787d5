// Large zeroed memory straight from the kernel, in huge pages if available. Page-aligned, freed on
// destruction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace shoal::server {

class PageBuffer {
 public:
  PageBuffer() = default;
  // ResourceExhausted if the machine does not have that much.
  static absl::StatusOr<PageBuffer> Allocate(int64_t bytes);
  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept : memory_(other.memory_) { other.memory_ = {}; }
  PageBuffer& operator=(PageBuffer&& other) noexcept;

  // Gives the whole pages of a part back, which is zero afterwards.
  static void Release(std::span<std::byte> part);

  std::span<std::byte> bytes() const { return memory_; }
  // Returns the memory from byte_offset on, as an array of T.
  template <typename T>
  T* as(int64_t byte_offset = 0) const {
    return reinterpret_cast<T*>(memory_.data() + byte_offset);
  }

 private:
  explicit PageBuffer(std::span<std::byte> memory) : memory_(memory) {}
  std::span<std::byte> memory_;
};

}  // namespace shoal::server

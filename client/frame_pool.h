// Buffers for whole units, in one size per distinct unit size: a block's weights never wait for
// the far larger buffer of an embedding. Externally locked; allocates only when created.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/registered_memory.h"
#include "common/dtype.h"

namespace shoal::client {

class FramePool {
 public:
  // `counts`: elements by unit; a unit with 0 gets no frame and is never asked for. `per_size`
  // frames for each distinct size, or as many as there are units of that size where those are
  // fewer.
  static absl::StatusOr<FramePool> Create(std::span<const int64_t> counts, DType dtype,
                                          int per_size,
                                          std::span<transport::Transport* const> transports);

  // nullptr: none is free.
  std::byte* Acquire(int unit);
  void Release(int unit, std::byte* frame);
  int frames(int unit) const;  // that exist of the unit's size; 0: it has none
  int64_t bytes() const { return static_cast<int64_t>(memory_->bytes().size()); }

 private:
  static constexpr size_t kNoSize = ~size_t{0};
  struct Size {
    int64_t count = 0;
    int frames = 0;
    std::vector<std::byte*> free;
  };
  Size& SizeOfUnit(int unit);
  std::vector<Size> sizes_;
  std::vector<size_t> size_of_unit_;  // kNoSize: it has none
  std::unique_ptr<RegisteredMemory> memory_;
};

}  // namespace shoal::client

// Buffers for whole units, in one size per distinct unit size: a block's weights never wait for
// the far larger buffer of an embedding. Externally locked; allocates only when created.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/buffer_sizes.h"
#include "client/registered_memory.h"

namespace shoal::client {

class BufferPool {
 public:
  // `allocate` as RegisteredMemory::Create has it.
  static absl::StatusOr<BufferPool> Create(BufferSizes sizes,
                                           std::span<transport::Transport* const> transports,
                                           const BufferAllocator& allocate = nullptr);

  // Returns nullptr if none is free.
  std::byte* Acquire(int unit);
  void Release(int unit, std::byte* buffer);
  int buffers(int unit) const;  // of the unit's size; 0 if it has none
  int64_t bytes() const { return static_cast<int64_t>(memory_->bytes().size()); }

 private:
  BufferSizes sizes_;
  std::vector<std::vector<std::byte*>> free_;  // by size
  std::unique_ptr<RegisteredMemory> memory_;
};

}  // namespace shoal::client

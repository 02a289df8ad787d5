#include "client/buffer_pool.h"

#include <utility>

#include "core/base/status.h"

namespace shoal::client {

absl::StatusOr<BufferPool> BufferPool::Create(BufferSizes sizes,
                                              std::span<transport::Transport* const> transports,
                                              const BufferAllocator& allocate) {
  BufferPool pool;
  SHOAL_ASSIGN_OR_RETURN(pool.memory_,
                         RegisteredMemory::Create(sizes.total_bytes(), transports, allocate));
  std::byte* next = pool.memory_->bytes().data();
  for (const BufferSizes::Size& size : sizes.sizes()) {
    std::vector<std::byte*>& free = pool.free_.emplace_back();
    for (int i = 0; i < size.count; ++i) {
      free.push_back(next);
      next += size.bytes;
    }
  }
  pool.sizes_ = std::move(sizes);
  return pool;
}

std::byte* BufferPool::Acquire(int unit) {
  std::vector<std::byte*>& free = free_[sizes_.of(unit)];
  if (free.empty()) {
    return nullptr;
  }
  std::byte* buffer = free.back();
  free.pop_back();
  return buffer;
}

void BufferPool::Release(int unit, std::byte* buffer) { free_[sizes_.of(unit)].push_back(buffer); }

int BufferPool::buffers(int unit) const {
  return sizes_.has(unit) ? sizes_.sizes()[sizes_.of(unit)].count : 0;
}

}  // namespace shoal::client

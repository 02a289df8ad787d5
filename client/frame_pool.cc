#include "client/frame_pool.h"

#include <utility>

#include "core/base/status.h"

namespace shoal::client {

absl::StatusOr<FramePool> FramePool::Create(FrameSizes sizes,
                                            std::span<transport::Transport* const> transports,
                                            const BufferAllocator& allocate) {
  FramePool pool;
  SHOAL_ASSIGN_OR_RETURN(pool.memory_,
                         RegisteredMemory::Create(sizes.total_bytes(), transports, allocate));
  std::byte* next = pool.memory_->bytes().data();
  for (const FrameSizes::Size& size : sizes.sizes()) {
    std::vector<std::byte*>& free = pool.free_.emplace_back();
    for (int i = 0; i < size.frames; ++i) {
      free.push_back(next);
      next += size.bytes;
    }
  }
  pool.sizes_ = std::move(sizes);
  return pool;
}

std::byte* FramePool::Acquire(int unit) {
  std::vector<std::byte*>& free = free_[sizes_.of(unit)];
  if (free.empty()) {
    return nullptr;
  }
  std::byte* frame = free.back();
  free.pop_back();
  return frame;
}

void FramePool::Release(int unit, std::byte* frame) { free_[sizes_.of(unit)].push_back(frame); }

int FramePool::frames(int unit) const {
  return sizes_.has(unit) ? sizes_.sizes()[sizes_.of(unit)].frames : 0;
}

}  // namespace shoal::client

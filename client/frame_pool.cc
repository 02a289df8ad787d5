#include "client/frame_pool.h"

#include <algorithm>

#include "common/bytes.h"
#include "common/check.h"
#include "common/status.h"
#include "transport/data_layout.h"

namespace shoal::client {

absl::StatusOr<FramePool> FramePool::Create(std::span<const int64_t> counts, DType dtype,
                                            int per_size,
                                            std::span<transport::Transport* const> transports) {
  SHOAL_CHECK(per_size > 0);
  FramePool pool;
  for (const int64_t count : counts) {
    if (count == 0) {
      pool.size_of_unit_.push_back(kNoSize);
      continue;
    }
    auto size = std::find_if(pool.sizes_.begin(), pool.sizes_.end(),
                             [&](const Size& s) { return s.count == count; });
    if (size == pool.sizes_.end()) {
      size = pool.sizes_.insert(size, {.count = count});
    }
    size->frames = std::min(size->frames + 1, per_size);
    pool.size_of_unit_.push_back(static_cast<size_t>(size - pool.sizes_.begin()));
  }
  const auto frame_bytes = [&](const Size& size) {
    return RoundUp(size.count * SizeOf(dtype), transport::kBufferAlignment);
  };
  int64_t total = 0;
  for (const Size& size : pool.sizes_) {
    total += size.frames * frame_bytes(size);
  }
  SHOAL_ASSIGN_OR_RETURN(pool.memory_, RegisteredMemory::Create(total, transports));
  std::byte* next = pool.memory_->bytes().data();
  for (Size& size : pool.sizes_) {
    for (int i = 0; i < size.frames; ++i) {
      size.free.push_back(next);
      next += frame_bytes(size);
    }
  }
  return pool;
}

FramePool::Size& FramePool::SizeOfUnit(int unit) {
  const size_t size = size_of_unit_[static_cast<size_t>(unit)];
  SHOAL_CHECK(size != kNoSize);
  return sizes_[size];
}

std::byte* FramePool::Acquire(int unit) {
  std::vector<std::byte*>& free = SizeOfUnit(unit).free;
  if (free.empty()) {
    return nullptr;
  }
  std::byte* frame = free.back();
  free.pop_back();
  return frame;
}

void FramePool::Release(int unit, std::byte* frame) { SizeOfUnit(unit).free.push_back(frame); }

int FramePool::frames(int unit) const {
  const size_t size = size_of_unit_[static_cast<size_t>(unit)];
  return size == kNoSize ? 0 : sizes_[size].frames;
}

}  // namespace shoal::client

#include "worker/exchange/device_buffers.h"

#include <utility>

#include "core/base/status.h"
#include "worker/exchange/gpu_direct.h"

namespace shoal::worker {

absl::StatusOr<DeviceBuffers> DeviceBuffers::Create(
    client::BufferSizes sizes, Device& device, std::span<transport::Transport* const> transports) {
  DeviceBuffers buffers;
  std::byte* next = nullptr;
  if (sizes.total_bytes() > 0) {
    SHOAL_ASSIGN_OR_RETURN(buffers.memory_,
                           client::RegisteredMemory::Create(sizes.total_bytes(), transports,
                                                            DeviceAllocator(&device)));
    next = buffers.memory_->bytes().data();
  }
  for (const client::BufferSizes::Size& size : sizes.sizes()) {
    std::deque<DeviceBuffer>& free = buffers.free_.emplace_back();
    for (int i = 0; i < size.count; ++i) {
      free.push_back({.data = next});
      next += size.bytes;
    }
  }
  buffers.sizes_ = std::move(sizes);
  return buffers;
}

std::optional<DeviceBuffer> DeviceBuffers::Acquire(int unit) {
  std::deque<DeviceBuffer>& free = free_[sizes_.of(unit)];
  if (free.empty()) {
    return std::nullopt;
  }
  DeviceBuffer buffer = std::move(free.front());
  free.pop_front();
  return buffer;
}

void DeviceBuffers::Release(int unit, DeviceBuffer buffer) {
  free_[sizes_.of(unit)].push_back(std::move(buffer));
}

void DeviceBuffers::FreeAfter(const std::shared_ptr<const Event>& now) {
  for (std::deque<DeviceBuffer>& buffers : free_) {
    for (DeviceBuffer& buffer : buffers) {
      buffer.free_after = buffer.free_after == nullptr ? nullptr : now;
    }
  }
}

}  // namespace shoal::worker

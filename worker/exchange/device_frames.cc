#include "worker/exchange/device_frames.h"

#include <utility>

#include "core/base/status.h"
#include "worker/exchange/direct_ways.h"

namespace shoal::worker {

absl::StatusOr<DeviceFrames> DeviceFrames::Create(
    client::FrameSizes sizes, Device& device, std::span<transport::Transport* const> transports) {
  DeviceFrames frames;
  std::byte* next = nullptr;
  if (sizes.total_bytes() > 0) {
    SHOAL_ASSIGN_OR_RETURN(frames.memory_,
                           client::RegisteredMemory::Create(sizes.total_bytes(), transports,
                                                            DeviceAllocator(&device)));
    next = frames.memory_->bytes().data();
  }
  for (const client::FrameSizes::Size& size : sizes.sizes()) {
    std::deque<DeviceFrame>& free = frames.free_.emplace_back();
    for (int i = 0; i < size.frames; ++i) {
      free.push_back({.data = next});
      next += size.bytes;
    }
  }
  frames.sizes_ = std::move(sizes);
  return frames;
}

std::optional<DeviceFrame> DeviceFrames::Acquire(int unit) {
  std::deque<DeviceFrame>& free = free_[sizes_.of(unit)];
  if (free.empty()) {
    return std::nullopt;
  }
  DeviceFrame frame = std::move(free.front());
  free.pop_front();
  return frame;
}

void DeviceFrames::Release(int unit, DeviceFrame frame) {
  free_[sizes_.of(unit)].push_back(std::move(frame));
}

void DeviceFrames::FreeAfter(const std::shared_ptr<const Event>& now) {
  for (std::deque<DeviceFrame>& frames : free_) {
    for (DeviceFrame& frame : frames) {
      frame.free_after = frame.free_after == nullptr ? nullptr : now;
    }
  }
}

}  // namespace shoal::worker

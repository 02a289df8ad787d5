#include "worker/trainer/device_frames.h"

#include <utility>

#include "common/status.h"

namespace shoal::worker {

absl::StatusOr<DeviceFrames> DeviceFrames::Create(client::FrameSizes sizes, Memory& memory) {
  DeviceFrames frames;
  if (sizes.total_bytes() > 0) {
    SHOAL_ASSIGN_OR_RETURN(frames.buffer_, memory.Allocate(sizes.total_bytes()));
  }
  std::byte* next = frames.buffer_.data();
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

}  // namespace shoal::worker

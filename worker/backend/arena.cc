#include "worker/backend/arena.h"

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::worker {

absl::Status Arena::Reserve(int64_t bytes) {
  SHOAL_CHECK(ranges_.used() == 0);
  ranges_ = RangeAllocator(capacity(), kBufferAlignment);
  if (bytes <= capacity()) {
    return absl::OkStatus();
  }
  buffer_.Reset();  // before the new one, so that both are never held at once
  ranges_ = RangeAllocator(0, kBufferAlignment);
  absl::StatusOr<Buffer> buffer = memory_.Allocate(RoundUp(bytes, kBufferAlignment));
  if (!buffer.ok()) {
    return Annotate(buffer.status(), what_);
  }
  buffer_ = *std::move(buffer);
  ++reservations_;
  ranges_ = RangeAllocator(capacity(), kBufferAlignment);
  if (poison_ != nullptr) {
    poison_->Fill(buffer_.data(), kPoison, capacity());
  }
  return absl::OkStatus();
}

absl::StatusOr<std::byte*> Arena::Take(int64_t bytes, int64_t place) {
  if (!ranges_.TakeAt(place, bytes)) {
    return ResourceExhausted(
        "{}: {} B asked for at {}, which are not free: {} of {} B in use, the largest hole has {} "
        "B",
        what_, bytes, place, used(), capacity(), ranges_.largest_hole());
  }
  return buffer_.data() + place;
}

void Arena::Give(std::byte* piece) {
  const int64_t bytes = ranges_.Give(piece - buffer_.data());
  if (poison_ != nullptr) {
    poison_->Fill(piece, kPoison, bytes);
  }
}

void Arena::GiveAll() {
  ranges_ = RangeAllocator(capacity(), kBufferAlignment);
  if (poison_ != nullptr && capacity() > 0) {
    poison_->Fill(buffer_.data(), kPoison, capacity());
  }
}

}  // namespace shoal::worker

#include "core/transport/shm/control.h"

#include "absl/time/clock.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr uint64_t kRingMask = kMaxWaitingDoorbells - 1;

template <typename T>
std::atomic_ref<T> Atomic(T& word) {
  return std::atomic_ref<T>(word);
}

}  // namespace

absl::StatusOr<int64_t> DoorbellSender::Room() const {
  const uint64_t waiting = rung_ - Atomic(direction_->taken).load(std::memory_order_acquire);
  if (waiting > kMaxWaitingDoorbells) {
    return DataLoss("the peer's doorbell counter is impossible");
  }
  return kMaxWaitingDoorbells - static_cast<int64_t>(waiting);
}

void DoorbellSender::Ring(uint32_t immediate) {
  Atomic(direction_->ring[rung_ & kRingMask]).store(immediate, std::memory_order_relaxed);
  ++rung_;
  Atomic(direction_->rung).store(rung_, std::memory_order_release);
}

bool DoorbellReceiver::Waiting() const {
  return Atomic(direction_->rung).load(std::memory_order_acquire) != taken_;
}

absl::StatusOr<std::optional<uint32_t>> DoorbellReceiver::Take() {
  const uint64_t waiting = Atomic(direction_->rung).load(std::memory_order_acquire) - taken_;
  if (waiting == 0) {
    return std::nullopt;
  }
  if (waiting > kMaxWaitingDoorbells) {
    return DataLoss("the peer's doorbell counter is impossible");
  }
  const uint32_t immediate =
      Atomic(direction_->ring[taken_ & kRingMask]).load(std::memory_order_relaxed);
  ++taken_;
  Atomic(direction_->taken).store(taken_, std::memory_order_release);
  return immediate;
}

bool Gate::Enter() {
  // Either this side sees `closed`, or the owner, which looks after setting it, sees `copying`.
  Atomic(direction_->copying).store(1, std::memory_order_seq_cst);
  if (Atomic(direction_->closed).load(std::memory_order_seq_cst) != 0) {
    Leave();
    return false;
  }
  return true;
}

void Gate::Leave() { Atomic(direction_->copying).store(0, std::memory_order_release); }

bool Gate::CloseAndWait(absl::Duration patience) {
  Atomic(direction_->closed).store(1, std::memory_order_seq_cst);
  const absl::Time deadline = RealClock().Now() + patience;
  while (Atomic(direction_->copying).load(std::memory_order_seq_cst) != 0) {
    if (RealClock().Now() > deadline) {
      return false;
    }
    absl::SleepFor(absl::Microseconds(20));
  }
  return true;
}

}  // namespace shoal::transport

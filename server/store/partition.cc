#include "server/store/partition.h"

#include <atomic>
#include <utility>

#include "core/base/status.h"
#include "core/base/testing/planted.h"

namespace shoal::server {
namespace {

// Peers may read header words at any time; this side writes them as atomics, so that a compiler
// neither splits nor reorders the writes.
void Publish(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_seq_cst);
}

}  // namespace

Partition::Partition(const plan::PartitionSpec& spec, const WeightsOffsets& place,
                     const Memory& memory, PartitionState& state, size_t index)
    : spec_(spec), place_(place), memory_(memory), state_(state), index_(index) {
  for (const int parity : {0, 1}) {
    Publish(memory_.header->version[parity], kNoVersion);
    // Odd where a write into that place was given up.
    const uint64_t sequence = memory_.header->sequence[parity];
    Publish(memory_.header->sequence[parity], sequence + (sequence & 1));
  }
}

Partition::PushOutcome Partition::ApplyPush(int64_t key, DType dtype, const std::byte* payload,
                                            PayloadMemory place) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) {
    return {.code = failure_.code()};
  }
  if (expected_ > 0 && keys_.count() == expected_ && !keys_.Contains(key)) {
    return {.code = absl::StatusCode::kFailedPrecondition};
  }
  switch (keys_.Insert(key)) {
    case KeySet::Outcome::kSeen:
      return {.applied_before = true};
    case KeySet::Outcome::kTooLarge:
      return {.code = absl::StatusCode::kResourceExhausted};
    case KeySet::Outcome::kNew:
      break;
  }
  failure_ = state_.Add(index_, dtype, payload, place, std::exchange(empty_, false));
  const int64_t last = expected_ - (SHOAL_PLANTED("early-seal-misses-contribution") ? 1 : 0);
  if (failure_.ok() && keys_.count() == last) {
    state_.ClearFrozen(index_);
    complete_ = true;
  }
  return {.code = failure_.code(), .complete = complete_};
}

bool Partition::complete() const {
  absl::MutexLock lock(&mutex_);
  return complete_;
}

absl::Status Partition::TakeGradient(int64_t offset, std::span<const float> elements) {
  absl::MutexLock lock(&mutex_);
  const int64_t end = offset + std::ssize(elements);
  if (offset < 0 || offset > taken_ || end > spec_.trained()) {
    return FailedPrecondition(
        "elements {} to {} of the gradient of partition {} come after {} of {}", offset, end,
        spec_.id, taken_, spec_.trained());
  }
  if (end > taken_) {
    SHOAL_RETURN_IF_ERROR(state_.WriteGradient(index_, offset, elements));
    taken_ = end;
  }
  return absl::OkStatus();
}

int64_t Partition::taken() const {
  absl::MutexLock lock(&mutex_);
  return taken_;
}

bool Partition::Contains(int64_t key) const {
  absl::MutexLock lock(&mutex_);
  return keys_.Contains(key);
}

int64_t Partition::pushes() const {
  absl::MutexLock lock(&mutex_);
  return keys_.count();
}

void Partition::Clear(int64_t expected) {
  absl::MutexLock lock(&mutex_);
  expected_ = expected;
  complete_ = false;
  taken_ = 0;
  empty_ = !SHOAL_PLANTED("gradient-kept");
  failure_ = absl::OkStatus();
  keys_.Clear();
}

absl::Status Partition::Seal() {
  absl::MutexLock lock(&mutex_);
  return empty_ ? state_.Clear(index_) : failure_;
}

void Partition::BeginWrite(int64_t version) {
  transport::PartitionHeader& header = *memory_.header;
  const int parity = static_cast<int>(version % 2);
  Publish(header.sequence[parity], header.sequence[parity] | 1);
  std::atomic_thread_fence(
      std::memory_order_seq_cst);  // Write the buffer only after its sequence is odd.
}

void Partition::EndWrite(int64_t version) {
  transport::PartitionHeader& header = *memory_.header;
  const int parity = static_cast<int>(version % 2);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Publish(header.version[parity], static_cast<uint64_t>(version));
  Publish(header.sequence[parity], header.sequence[parity] + 1);
}

}  // namespace shoal::server

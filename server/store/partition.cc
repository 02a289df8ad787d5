#include "server/store/partition.h"

#include <atomic>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace shoal::server {
namespace {

// Header words are read by peers at any time; on this side they are written as atomics, so that a
// compiler neither splits nor reorders them.
void Publish(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_seq_cst);
}

}  // namespace

Partition::Partition(const plan::PartitionSpec& spec, std::vector<plan::DecayRange> decay,
                     const WeightsPlace& place, const Memory& memory)
    : spec_(spec), decay_(std::move(decay)), place_(place), memory_(memory) {
  SHOAL_CHECK((memory.sum == nullptr) != (memory.exact_sum == nullptr));
  Publish(memory_.header->version[0], kNoVersion);
  Publish(memory_.header->version[1], kNoVersion);
}

Partition::PushOutcome Partition::ApplyPush(uint64_t incarnation, int64_t sequence, DType dtype,
                                            const std::byte* payload) {
  absl::MutexLock lock(&mutex_);
  Sender& sender = senders_[incarnation];
  switch (sender.sequences.Insert(sequence)) {
    case SequenceSet::Outcome::kSeen:
      ++sender.duplicates;
      return {.applied_before = true};
    case SequenceSet::Outcome::kTooFarAhead:
      return {.code = absl::StatusCode::kResourceExhausted};
    case SequenceSet::Outcome::kNew:
      break;
  }
  Accumulate(dtype, payload);
  return {};
}

bool Partition::CountIfApplied(uint64_t incarnation, int64_t sequence) {
  absl::MutexLock lock(&mutex_);
  const auto sender = senders_.find(incarnation);
  if (sender == senders_.end() || !sender->second.sequences.Contains(sequence)) {
    return false;
  }
  ++sender->second.duplicates;
  return true;
}

void Partition::Accumulate(DType dtype, const std::byte* payload) {
  const AccumulateKernels& kernels = GetAccumulateKernels();
  const bool first = std::exchange(empty_, false);
  const auto* f32 = reinterpret_cast<const float*>(payload);
  const auto* bf16 = reinterpret_cast<const BFloat16*>(payload);
  const bool wide = dtype == DType::kF32;
  if (memory_.exact_sum != nullptr) {
    if (first) {
      std::memset(memory_.exact_sum, 0, static_cast<size_t>(spec_.count) * sizeof(int64_t));
    }
    refused_elements_ += wide ? kernels.add_exact_f32(f32, memory_.exact_sum, spec_.count)
                              : kernels.add_exact_bf16(bf16, memory_.exact_sum, spec_.count);
  } else if (first) {
    wide ? kernels.set_f32(f32, memory_.sum, spec_.count)
         : kernels.set_bf16(bf16, memory_.sum, spec_.count);
  } else {
    wide ? kernels.add_f32(f32, memory_.sum, spec_.count)
         : kernels.add_bf16(bf16, memory_.sum, spec_.count);
  }
}

void Partition::Clear() {
  absl::MutexLock lock(&mutex_);
  empty_ = true;
  refused_elements_ = 0;
  senders_.clear();
}

bool Partition::Seal() {
  absl::MutexLock lock(&mutex_);
  if (!empty_) {
    return true;
  }
  const auto count = static_cast<size_t>(spec_.count);
  if (memory_.exact_sum != nullptr) {
    std::memset(memory_.exact_sum, 0, count * sizeof(int64_t));
  } else {
    std::memset(memory_.sum, 0, count * sizeof(float));
  }
  return false;
}

int64_t Partition::refused_elements() const {
  absl::MutexLock lock(&mutex_);
  return refused_elements_;
}

void Partition::AddCounts(absl::flat_hash_map<uint64_t, PushCount>& counts) const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [incarnation, sender] : senders_) {
    PushCount& count = counts[incarnation];
    count.pushes += sender.sequences.count();
    count.duplicates += sender.duplicates;
  }
}

const float* Partition::Gradient(int64_t begin, int64_t end, float* scratch) const {
  if (memory_.exact_sum == nullptr) {
    return memory_.sum + begin;
  }
  GetAccumulateKernels().exact_to_float(memory_.exact_sum + begin, scratch, end - begin);
  return scratch;
}

void Partition::BeginWrite(int64_t version) {
  transport::PartitionHeader& header = *memory_.header;
  const int parity = static_cast<int>(version % 2);
  Publish(header.sequence[parity], header.sequence[parity] + 1);
  std::atomic_thread_fence(
      std::memory_order_seq_cst);  // The buffer is written only after its sequence is odd.
}

void Partition::EndWrite(int64_t version) {
  transport::PartitionHeader& header = *memory_.header;
  const int parity = static_cast<int>(version % 2);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Publish(header.version[parity], static_cast<uint64_t>(version));
  Publish(header.sequence[parity], header.sequence[parity] + 1);
}

}  // namespace shoal::server

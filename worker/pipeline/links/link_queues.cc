#include "worker/pipeline/links/link_queues.h"

#include <cstring>
#include <numeric>

#include "core/base/status.h"

namespace shoal::worker {
namespace {

// Receives that a peer may post ahead of this side's messages: more than any schedule has slots, so
// only a hostile peer exceeds it.
constexpr size_t kMostReceives = kMaxLinkSlots;

// Doorbells carry the low bits of the count.
bool IsNumber(uint32_t doorbell, uint32_t counted) { return doorbell == counted % kLinkNumbers; }

}  // namespace

void OutgoingQueue::BeginStep(const LinkStep& step, const BufferLayout& slots,
                              const BufferLayout& buffers, const BufferMemory& memory) {
  step_ = &step;
  slots_ = slots;
  layout_ = buffers;
  memory_ = memory;
  buffers_.assign(static_cast<size_t>(buffers.count), Buffer());
  free_.resize(buffers_.size());
  std::iota(free_.rbegin(), free_.rend(), 0);
}

std::optional<std::byte*> OutgoingQueue::Reserve(const StageMessage& message) {
  if (free_.empty()) {
    return std::nullopt;
  }
  const size_t buffer = free_.back();
  free_.pop_back();
  made_.insert_or_assign(message, buffer);
  return memory_.MessageOf(layout_, static_cast<int64_t>(buffer));
}

absl::Status OutgoingQueue::Send(const StageMessage& message) {
  const auto made = made_.extract(message);
  if (made.empty()) {
    return Internal("{} is sent without room", NameOf(message));
  }
  StageMessageHeader header = {
      .magic = kStageMessageMagic,
      .step = step_->step,
      .attempt = step_->attempt,
      .bytes = step_->bytes[static_cast<size_t>(message.microbatch)],
      .chunk = message.chunk,
      .microbatch = message.microbatch,
      .gradient = message.gradient ? 1U : 0U,
      .number = next_message_ + static_cast<uint32_t>(ready_.size()),
  };
  Seal(header);
  const size_t buffer = made.mapped();
  std::memcpy(memory_.HeaderOf(layout_, static_cast<int64_t>(buffer)), &header, sizeof(header));
  buffers_[buffer] = {.bytes = header.bytes, .unwritten = memory_.headers == nullptr ? 1 : 2};
  ready_.push_back(buffer);
  return absl::OkStatus();
}

absl::Status OutgoingQueue::OnReceive(uint32_t number, uint32_t slot) {
  if (!IsNumber(number, next_receive_) || receives_.size() >= kMostReceives) {
    return DataLoss("receive {} was announced where receive {} is expected", number,
                    next_receive_ % kLinkNumbers);
  }
  ++next_receive_;
  receives_.push_back(slot);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<OutgoingQueue::Write>> OutgoingQueue::NextWrite() {
  if (ready_.empty() || receives_.empty()) {
    return std::nullopt;
  }
  const uint32_t slot = receives_.front();
  if (slot >= slots_.count) {
    return DataLoss("a receive is posted in slot {} of {}", slot, slots_.count);
  }
  const size_t buffer = ready_.front();
  const auto piece = static_cast<int64_t>(buffer);
  const auto bytes = static_cast<size_t>(buffers_[buffer].bytes);
  Write write = {
      .buffer = buffer,
      .immediate = Encode({LinkDoorbell::Kind::kMessage, gradients_, next_message_, slot})};
  const std::byte* const header = memory_.HeaderOf(layout_, piece);
  if (memory_.headers == nullptr) {
    write.message = {.from = {header, kStageMessageHeaderBytes + bytes},
                     .offset = slots_.OffsetOf(slot)};
  } else {
    write.message = {.from = {memory_.MessageOf(layout_, piece), bytes},
                     .offset = slots_.OffsetOf(slot) + kStageMessageHeaderBytes};
    write.header = {.from = {header, kStageMessageHeaderBytes},
                    .offset = slots_.HeaderOffsetOf(slot)};
  }
  return write;
}

void OutgoingQueue::OnPosted() {
  ready_.pop_front();
  receives_.pop_front();
  ++next_message_;
}

void OutgoingQueue::OnWritten(size_t buffer) {
  if (--buffers_[buffer].unwritten == 0) {
    free_.push_back(buffer);
  }
}

void IncomingQueue::BeginStep(const LinkStep& step, const BufferLayout& slots,
                              const BufferMemory& memory) {
  step_ = &step;
  layout_ = slots;
  memory_ = memory;
  free_.resize(static_cast<size_t>(slots.count));
  std::iota(free_.rbegin(), free_.rend(), 0);
}

absl::Status IncomingQueue::Post(const StageMessage& message) {
  if (free_.empty()) {
    return Internal("{}: more than {} receives of the queue are posted", NameOf(message),
                    layout_.count);
  }
  const uint32_t slot = free_.back();
  free_.pop_back();
  posted_.push_back({message, slot});
  untold_.push_back(Encode({LinkDoorbell::Kind::kReceive, gradients_, next_receive_++, slot}));
  return absl::OkStatus();
}

std::optional<uint32_t> IncomingQueue::NextDoorbell() const {
  return untold_.empty() ? std::nullopt : std::optional(untold_.front());
}

absl::Status IncomingQueue::OnMessage(uint32_t number, uint32_t slot) {
  if (posted_.empty() || !IsNumber(number, next_message_) || slot != posted_.front().slot) {
    return DataLoss("message {} came into slot {} where no such message is expected", number, slot);
  }
  const StageMessage expected = posted_.front().message;
  StageMessageHeader header;
  std::memcpy(&header, memory_.HeaderOf(layout_, slot), sizeof(header));
  if (!IsWhole(header) || header.number != next_message_) {
    return DataLoss("the header of {} is broken", NameOf(expected));
  }
  if (header.step != step_->step || header.attempt != step_->attempt) {
    return DataLoss("a message of step {} attempt {} came in step {} attempt {}", header.step,
                    header.attempt, step_->step, step_->attempt);
  }
  const int64_t bytes = step_->bytes[static_cast<size_t>(expected.microbatch)];
  const StageMessage sent = {expected.peer, header.gradient != 0, header.chunk, header.microbatch};
  if (sent != expected || header.bytes != bytes) {
    return DataLoss("{} of {} B came where {} of {} B is expected", NameOf(sent), header.bytes,
                    NameOf(expected), bytes);
  }
  posted_.pop_front();
  ++next_message_;
  arrived_.insert_or_assign(expected, slot);
  return absl::OkStatus();
}

std::byte* IncomingQueue::Find(const StageMessage& message) const {
  const auto found = arrived_.find(message);
  return found == arrived_.end() ? nullptr : memory_.MessageOf(layout_, found->second);
}

absl::StatusOr<std::span<std::byte>> IncomingQueue::Consumed(const StageMessage& message) {
  const auto used = arrived_.extract(message);
  if (used.empty()) {
    return Internal("{} is consumed and was not there", NameOf(message));
  }
  free_.push_back(used.mapped());
  return std::span(memory_.pieces + layout_.OffsetOf(used.mapped()),
                   static_cast<size_t>(layout_.stride));
}

}  // namespace shoal::worker

// What arrives on a tcp connection. Everything in a frame is hostile until checked: a malformed
// frame ends its connection before it touches memory.
#include "core/base/status.h"
#include "core/transport/tcp/connection.h"

namespace shoal::transport {

absl::StatusOr<std::span<std::byte>> TcpConnectionState::BeginFrame(const TcpFrame& frame) {
  if (goodbye_) {
    return InvalidArgument("a frame after the goodbye");
  }
  switch (frame.type) {
    case TcpFrameType::kData:
      return BeginData(frame);
    case TcpFrameType::kWrite:
      return BeginWrite(frame);
    case TcpFrameType::kHello:
    case TcpFrameType::kWelcome:
    case TcpFrameType::kRefusal:
      return InvalidArgument("a second handshake");
    default:
      return std::span<std::byte>();
  }
}

absl::Status TcpConnectionState::EndFrame(const TcpFrame& frame) {
  switch (frame.type) {
    case TcpFrameType::kData:
      EndData(frame);
      return absl::OkStatus();
    case TcpFrameType::kWrite:
      return EndWrite(frame);
    case TcpFrameType::kRead:
      return TakeRead(frame);
    case TcpFrameType::kAck:
      return TakeAcknowledgement(frame);
    case TcpFrameType::kPing: {
      absl::MutexLock lock(&mutex_);
      outbox_.Pong();
      return absl::OkStatus();
    }
    case TcpFrameType::kGoodbye:
      goodbye_ = true;
      return absl::OkStatus();
    default:
      return absl::OkStatus();  // a pong: receiving it is enough
  }
}

absl::StatusOr<std::span<std::byte>> TcpConnectionState::BeginData(const TcpFrame& frame) {
  absl::MutexLock lock(&mutex_);
  if (reads_.empty() || frame.sequence != reads_posted_ - reads_.size() + 1 || frame.length == 0 ||
      frame.offset != reads_.front().received ||
      frame.length > reads_.front().into.size() - reads_.front().received) {
    return InvalidArgument("data that was not asked for (read {}, {} bytes at {})", frame.sequence,
                           frame.length, frame.offset);
  }
  return reads_.front().into.subspan(frame.offset, frame.length);
}

void TcpConnectionState::EndData(const TcpFrame& frame) {
  absl::MutexLock lock(&mutex_);
  OutstandingRead& read = reads_.front();
  read.received += frame.length;
  if (read.received == read.into.size()) {
    arrived_.push_back(Make(Event::Kind::kReadDone, read.operation, 0, absl::OkStatus()));
    reads_.pop_front();
  }
}

absl::StatusOr<std::span<std::byte>> TcpConnectionState::BeginWrite(const TcpFrame& frame) {
  if (frame.sequence != writes_received_ + 1) {
    return InvalidArgument("write {} out of order after {}", frame.sequence, writes_received_);
  }
  if (frame.length == 0) {
    if ((frame.flags & kLastOfWrite) == 0) {
      return InvalidArgument("an empty part of a write");
    }
    return std::span<std::byte>();
  }
  if (frame.region >= options_.exposed.size() ||
      options_.exposed[frame.region]->access() != Access::kRemoteWrite) {
    return PermissionDenied("a write to region {}, which is not exposed for writing", frame.region);
  }
  const std::span<std::byte> bytes = options_.exposed[frame.region]->bytes();
  if (frame.offset > bytes.size() || frame.length > bytes.size() - frame.offset) {
    return OutOfRange("a write of {} bytes at {} outside region {} of {} bytes", frame.length,
                      frame.offset, frame.region, bytes.size());
  }
  if (exposed_on_gpu_[frame.region]) {
    received_staging_.Reset();
    SHOAL_ASSIGN_OR_RETURN(const std::span<std::byte> staged, received_staging_.Take(frame.length));
    staged_payload_ = staged;
    return staged;
  }
  return bytes.subspan(frame.offset, frame.length);
}

absl::Status TcpConnectionState::EndWrite(const TcpFrame& frame) {
  if (!staged_payload_.empty()) {
    std::byte* const to = options_.exposed[frame.region]->bytes().data() + frame.offset;
    const absl::Status copied = received_staging_.CopyOut(staged_payload_, to);
    staged_payload_ = {};
    SHOAL_RETURN_IF_ERROR(copied);
  }
  if ((frame.flags & kLastOfWrite) == 0) {
    return absl::OkStatus();
  }
  ++writes_received_;
  absl::MutexLock lock(&mutex_);
  if ((frame.flags & kRing) != 0) {
    ++doorbells_received_;
    if (doorbells_received_ - doorbells_taken_ > kMaxWaitingDoorbells) {
      return ResourceExhausted("more than {} doorbells wait here", kMaxWaitingDoorbells);
    }
    arrived_.push_back(Make(Event::Kind::kDoorbell, 0, frame.immediate, absl::OkStatus()));
  }
  outbox_.SetReceived(writes_received_);
  outbox_.Acknowledge();
  return absl::OkStatus();
}

absl::Status TcpConnectionState::TakeRead(const TcpFrame& frame) {
  if (frame.sequence != ++reads_received_) {
    return InvalidArgument("read {} out of order", frame.sequence);
  }
  if (frame.region >= options_.exposed.size() || frame.length == 0) {
    return OutOfRange("a read of {} bytes of region {}, which is not exposed", frame.length,
                      frame.region);
  }
  const std::span<const std::byte> bytes = options_.exposed[frame.region]->bytes();
  if (frame.offset > bytes.size() || frame.length > bytes.size() - frame.offset) {
    return OutOfRange("a read of {} bytes at {} outside region {} of {} bytes", frame.length,
                      frame.offset, frame.region, bytes.size());
  }
  absl::MutexLock lock(&mutex_);
  if (outbox_.replies() >= static_cast<uint64_t>(peer_.max_outstanding)) {
    return ResourceExhausted("more than {} reads outstanding", peer_.max_outstanding);
  }
  outbox_.AddReply(frame.sequence, bytes.subspan(frame.offset, frame.length),
                   exposed_on_gpu_[frame.region]);
  return absl::OkStatus();
}

absl::Status TcpConnectionState::TakeAcknowledgement(const TcpFrame& frame) {
  absl::MutexLock lock(&mutex_);
  // The acknowledgement may overtake the sending thread's bookkeeping. One for what was never sent
  // must not complete a write whose memory is still to be sent.
  auto settled = [this, &frame]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !sending_ || writes_sent_ >= frame.sequence;
  };
  mutex_.Await(absl::Condition(&settled));
  if (frame.sequence > writes_sent_ || frame.sequence < writes_posted_ - writes_.size()) {
    return InvalidArgument("an acknowledgement of write {}, {} were sent", frame.sequence,
                           writes_sent_);
  }
  if (frame.offset < doorbells_taken_there_ || frame.offset > doorbells_posted_) {
    return InvalidArgument("credit for {} doorbells, {} were rung", frame.offset,
                           doorbells_posted_);
  }
  doorbells_taken_there_ = frame.offset;
  for (uint64_t acknowledged = writes_posted_ - writes_.size(); acknowledged < frame.sequence;
       ++acknowledged) {
    arrived_.push_back(Make(Event::Kind::kWriteDone, writes_.front(), 0, absl::OkStatus()));
    writes_.pop_front();
  }
  return absl::OkStatus();
}

}  // namespace shoal::transport

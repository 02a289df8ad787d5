#include "core/transport/tcp/outbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::transport {

void TcpBatch::Add(const TcpFrame& frame, std::span<const std::byte> payload) {
  SHOAL_CHECK(count_ < kFrames);
  items_[count_] = {frame, payload};
  bytes_ += items_[count_].size();
  ++count_;
}

void TcpBatch::Encrypt(RecordSealer sealer) {
  sealer_ = std::move(sealer);
  sealed_.resize(kRecordBufferBytes);
}

size_t TcpBatch::Gather(size_t bytes, Parts& parts) const {
  size_t used = 0;
  size_t skip = sent_of_first_;
  const auto add = [&](const void* data, size_t size) {
    const size_t skipped = std::min(skip, size);
    skip -= skipped;
    const size_t taken = std::min(size - skipped, bytes);
    bytes -= taken;
    if (taken > 0) {
      parts[used++] = {const_cast<char*>(static_cast<const char*>(data)) + skipped, taken};
    }
  };
  for (size_t i = first_; i < count_ && bytes > 0; ++i) {
    add(&items_[i].frame, sizeof(TcpFrame));
    add(items_[i].payload.data(), items_[i].payload.size());
  }
  return used;
}

void TcpBatch::SealRecords() {
  size_t size = 0;
  while (first_ != count_ && sealed_.size() - size >= kMaxRecordBytes + kRecordOverhead) {
    Parts parts;
    const size_t used = Gather(kMaxRecordBytes, parts);
    const size_t record = sealer_->Seal(std::span(parts).first(used), sealed_.data() + size);
    Advance(record - kRecordOverhead);
    size += record;
  }
  unsent_ = std::span(sealed_).first(size);
}

ssize_t TcpBatch::Send(int socket) {
  Parts parts;
  msghdr message = {};
  message.msg_iov = parts.data();
  if (sealer_.has_value()) {
    if (unsent_.empty()) {
      SealRecords();
    }
    parts[0] = {const_cast<std::byte*>(unsent_.data()), unsent_.size()};
    message.msg_iovlen = 1;
  } else {
    message.msg_iovlen = Gather(std::numeric_limits<size_t>::max(), parts);
  }
  const ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0 && sealer_.has_value()) {
    unsent_ = unsent_.subspan(static_cast<size_t>(sent));
  } else if (sent > 0) {
    Advance(static_cast<size_t>(sent));
  }
  return sent;
}

void TcpBatch::SendGoodbye(int socket) {
  if (mid_frame()) {
    return;
  }
  first_ = count_ = 0;
  Add({.type = TcpFrameType::kGoodbye}, {});
  (void)Send(socket);
}

void TcpBatch::Advance(size_t sent) {
  sent_of_first_ += sent;
  while (first_ < count_ && sent_of_first_ >= items_[first_].size()) {
    const TcpFrame& frame = items_[first_].frame;
    if (frame.type == TcpFrameType::kWrite && (frame.flags & kLastOfWrite) != 0) {
      writes_sent_ = frame.sequence;
    }
    sent_of_first_ -= items_[first_].size();
    ++first_;
  }
  if (first_ == count_) {
    first_ = 0;
    count_ = 0;
    bytes_ = 0;
  }
}

void TcpOutbox::AddRead(uint64_t sequence, int region, int64_t offset, size_t size) {
  requests_.push_back({.type = TcpFrameType::kRead,
                       .region = static_cast<uint32_t>(region),
                       .sequence = sequence,
                       .offset = static_cast<uint64_t>(offset),
                       .length = size});
}

void TcpOutbox::AddWrite(uint64_t sequence, int region, int64_t offset,
                         std::span<const std::byte> from, bool ring, uint32_t immediate) {
  // An empty write touches nothing, whatever its target.
  const TcpFrame frame = {.type = TcpFrameType::kWrite,
                          .flags = static_cast<uint8_t>(kLastOfWrite | (ring ? kRing : 0)),
                          .region = from.empty() ? 0 : static_cast<uint32_t>(region),
                          .immediate = immediate,
                          .sequence = sequence,
                          .offset = from.empty() ? 0 : static_cast<uint64_t>(offset)};
  writes_.push_back({frame, from});
}

void TcpOutbox::AddReply(uint64_t read_sequence, std::span<const std::byte> from, bool on_gpu) {
  replies_.push_back({{.type = TcpFrameType::kData, .sequence = read_sequence}, from, on_gpu});
}

absl::Status TcpOutbox::AddChunk(std::deque<Chunked>& from, TcpBatch& batch, TcpStaging& staging) {
  Chunked& next = from.front();
  std::span<const std::byte> chunk =
      next.left.first(std::min<size_t>(next.left.size(), kMaxPayloadBytes));
  if (next.on_gpu) {
    SHOAL_ASSIGN_OR_RETURN(chunk, staging.TakeCopy(chunk));
  }
  TcpFrame frame = next.frame;
  frame.length = chunk.size();
  next.left = next.left.subspan(chunk.size());
  if (next.left.empty()) {
    batch.Add(frame, chunk);
    from.pop_front();
    return absl::OkStatus();
  }
  frame.flags = 0;
  batch.Add(frame, chunk);
  next.frame.offset += chunk.size();
  return absl::OkStatus();
}

absl::StatusOr<bool> TcpOutbox::Fill(TcpBatch& batch, TcpStaging& staging) {
  staging.Reset();
  if (acknowledge_) {
    batch.Add(
        {.type = TcpFrameType::kAck, .sequence = writes_received_, .offset = doorbells_taken_}, {});
    acknowledge_ = false;
  }
  if (ping_) {
    batch.Add({.type = TcpFrameType::kPing}, {});
    ping_ = false;
  }
  if (pong_) {
    batch.Add({.type = TcpFrameType::kPong}, {});
    pong_ = false;
  }
  while (!batch.full() && !requests_.empty()) {
    batch.Add(requests_.front(), {});
    requests_.pop_front();
  }
  while (!batch.full() && (!writes_.empty() || !replies_.empty())) {
    const bool reply = writes_.empty() || (reply_next_ && !replies_.empty());
    SHOAL_RETURN_IF_ERROR(AddChunk(reply ? replies_ : writes_, batch, staging));
    reply_next_ = !reply;
  }
  return !batch.empty();
}

}  // namespace shoal::transport

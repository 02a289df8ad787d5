#include "core/transport/tcp/inbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/transport/shared_words.h"

namespace shoal::transport {
namespace {

// After a payload, room for the headers that follow it but not for much of the next payload.
constexpr size_t kBehindPayload = 1024;

}  // namespace

absl::StatusOr<TcpInbox::Progress> TcpInbox::Receive(int socket, size_t budget, Handler& handler) {
  while (budget > 0) {
    const size_t room = buffer_.size() - filled_;
    iovec parts[2] = {
        {payload_.data(), payload_.size()},
        {buffer_.data() + filled_, payload_.empty() ? room : std::min(room, kBehindPayload)}};
    msghdr message = {};
    message.msg_iov = payload_.empty() ? parts + 1 : parts;
    message.msg_iovlen = payload_.empty() ? 1 : 2;
    const size_t asked = payload_.size() + parts[1].iov_len;
    const ssize_t result = recvmsg(socket, &message, MSG_DONTWAIT);
    if (result == 0) {
      return Progress::kEnd;
    }
    if (result < 0) {
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return Progress::kDrained;
      }
      if (errno == EINTR) {
        continue;
      }
      return errno == ETIMEDOUT || errno == EHOSTUNREACH
                 ? Unavailable("the peer's host does not answer")
                 : Unavailable("{}", std::strerror(errno));
    }
    const size_t received = static_cast<size_t>(result);
    const size_t to_payload = std::min(received, payload_.size());
    filled_ += received - to_payload;
    if (!payload_.empty()) {
      payload_ = payload_.subspan(to_payload);
      if (payload_.empty()) {
        SHOAL_RETURN_IF_ERROR(EndFrame(handler));
      }
    }
    if (payload_.empty()) {
      SHOAL_RETURN_IF_ERROR(TakeApart(handler));
    }
    if (received < asked) {
      return Progress::kDrained;
    }
    budget -= std::min(budget, received);
  }
  return Progress::kMore;
}

absl::Status TcpInbox::EndFrame(Handler& handler) {
  if (payload_begin_ != nullptr) {
    PublishShared(payload_begin_);
  }
  return handler.EndFrame(frame_);
}

absl::Status TcpInbox::TakeApart(Handler& handler) {
  size_t at = 0;
  while (payload_.empty() && filled_ - at >= sizeof(TcpFrame)) {
    std::memcpy(&frame_, buffer_.data() + at, sizeof frame_);
    at += sizeof frame_;
    SHOAL_RETURN_IF_ERROR(CheckFrame(frame_));
    SHOAL_ASSIGN_OR_RETURN(payload_, handler.BeginFrame(frame_));
    payload_begin_ = payload_.data();
    SHOAL_CHECK(payload_.size() == (frame_.has_payload() ? frame_.length : 0));
    const size_t here = std::min(filled_ - at, payload_.size());
    if (here > 0) {
      std::memcpy(payload_.data(), buffer_.data() + at, here);
      payload_ = payload_.subspan(here);
      at += here;
    }
    if (payload_.empty()) {
      SHOAL_RETURN_IF_ERROR(EndFrame(handler));
    }
  }
  std::memmove(buffer_.data(), buffer_.data() + at, filled_ - at);
  filled_ -= at;
  return absl::OkStatus();
}

}  // namespace shoal::transport

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
    std::span<std::byte> behind(buffer_);
    if (opener_.has_value()) {
      behind = opener_->Room();
    } else if (!payload_.empty()) {
      behind = behind.first(kBehindPayload);
    }
    const std::span<std::byte> place = opener_.has_value() ? std::span<std::byte>() : payload_;
    iovec parts[2] = {{place.data(), place.size()}, {behind.data(), behind.size()}};
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const size_t asked = place.size() + behind.size();
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
    SHOAL_RETURN_IF_ERROR(opener_.has_value() ? TakeRecords(received, handler)
                                              : Take(received, handler));
    if (received < asked) {
      return Progress::kDrained;
    }
    budget -= std::min(budget, received);
  }
  return Progress::kMore;
}

// The first of the bytes received are in place, as far as a payload was missing.
absl::Status TcpInbox::Take(size_t received, Handler& handler) {
  const size_t in_place = std::min(received, payload_.size());
  if (in_place > 0) {
    payload_ = payload_.subspan(in_place);
    if (payload_.empty()) {
      SHOAL_RETURN_IF_ERROR(EndFrame(handler));
    }
  }
  return TakeApart(std::span(buffer_).first(received - in_place), handler);
}

absl::Status TcpInbox::TakeRecords(size_t received, Handler& handler) {
  opener_->Received(received);
  while (true) {
    SHOAL_ASSIGN_OR_RETURN(const std::span<const std::byte> frames, opener_->Next());
    if (frames.empty()) {
      return absl::OkStatus();
    }
    SHOAL_RETURN_IF_ERROR(TakeApart(frames, handler));
  }
}

absl::Status TcpInbox::EndFrame(Handler& handler) {
  if (payload_begin_ != nullptr) {
    PublishShared(payload_begin_);
  }
  return handler.EndFrame(frame_);
}

absl::Status TcpInbox::TakeApart(std::span<const std::byte> bytes, Handler& handler) {
  while (!bytes.empty()) {
    size_t here = 0;
    if (payload_.empty()) {
      here = std::min(bytes.size(), sizeof frame_ - header_filled_);
      std::memcpy(reinterpret_cast<std::byte*>(&frame_) + header_filled_, bytes.data(), here);
      header_filled_ += here;
      if (header_filled_ < sizeof frame_) {
        return absl::OkStatus();
      }
      header_filled_ = 0;
      SHOAL_RETURN_IF_ERROR(CheckFrame(frame_));
      SHOAL_ASSIGN_OR_RETURN(payload_, handler.BeginFrame(frame_));
      payload_begin_ = payload_.data();
      SHOAL_CHECK(payload_.size() == (frame_.has_payload() ? frame_.length : 0));
    } else {
      here = std::min(bytes.size(), payload_.size());
      std::memcpy(payload_.data(), bytes.data(), here);
      payload_ = payload_.subspan(here);
    }
    bytes = bytes.subspan(here);
    if (payload_.empty()) {
      SHOAL_RETURN_IF_ERROR(EndFrame(handler));
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::transport

// Takes a stream of frames apart. Payloads go from the socket straight to where the handler says.
// One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/transport/tcp/frame.h"

namespace shoal::transport {

class TcpInbox {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // A frame whose CheckFrame is OK. Where its payload goes: exactly frame.length bytes if it has
    // one.
    virtual absl::StatusOr<std::span<std::byte>> BeginFrame(const TcpFrame& frame) = 0;
    // Its payload is in place.
    virtual absl::Status EndFrame(const TcpFrame& frame) = 0;
  };
  enum class Progress {
    kDrained,  // nothing more for now
    kMore,     // the budget is used up
    kEnd,      // the peer's end of the stream is closed
  };

  // Receives about `budget` bytes at most. An error of the socket, of a frame or of the handler is
  // final.
  absl::StatusOr<Progress> Receive(int socket, size_t budget, Handler& handler);

 private:
  absl::Status TakeApart(Handler& handler);
  absl::Status EndFrame(Handler& handler);

  TcpFrame frame_;
  std::byte* payload_begin_ = nullptr;  // of frame_'s payload; null: it has none
  std::span<std::byte> payload_;        // what is missing of frame_'s payload
  // Headers and small payloads. Small, as a large payload that begins in it is copied once more.
  std::array<std::byte, 16384> buffer_;
  size_t filled_ = 0;
};

}  // namespace shoal::transport

// Parses a stream of frames. Payloads go from the socket straight to where the handler says; from
// records, once their tags are checked. For one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/transport/tcp/frame.h"
#include "core/transport/tcp/record.h"

namespace shoal::transport {

class TcpInbox {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    // Called with a frame that passed CheckFrame. Returns where its payload goes: exactly
    // frame.length bytes if it has one.
    virtual absl::StatusOr<std::span<std::byte>> BeginFrame(const TcpFrame& frame) = 0;
    // Called when its payload is in place.
    virtual absl::Status EndFrame(const TcpFrame& frame) = 0;
  };
  enum class Progress {
    kDrained,  // nothing more for now
    kMore,     // the budget is used up
    kEnd,      // the peer has closed the stream
  };

  // From now on frames come in records. Before anything is received.
  void Decrypt(RecordOpener opener) { opener_ = std::move(opener); }

  // Receives at most about `budget` bytes. An error of the socket, of a record, of a frame or of
  // the handler is final.
  absl::StatusOr<Progress> Receive(int socket, size_t budget, Handler& handler);

 private:
  absl::Status Take(size_t received, Handler& handler);
  absl::Status TakeRecords(size_t received, Handler& handler);
  absl::Status TakeApart(std::span<const std::byte> bytes, Handler& handler);
  absl::Status EndFrame(Handler& handler);

  TcpFrame frame_;
  size_t header_filled_ = 0;            // bytes of frame_, while payload_ is empty
  std::byte* payload_begin_ = nullptr;  // of frame_'s payload; null: it has none
  std::span<std::byte> payload_;        // what is still missing of frame_'s payload
  // Headers and small payloads. Small, since the part of a large payload that lands in it is copied
  // once more.
  std::array<std::byte, 16384> buffer_;
  std::optional<RecordOpener> opener_;
};

}  // namespace shoal::transport

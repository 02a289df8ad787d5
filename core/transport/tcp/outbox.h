// What a connection has still to send, and the batch of frames that is on its way into the socket.
//
// Bounds: requests and writes by max_outstanding of this side, replies by that of the peer;
// acknowledgements, pings and pongs are flags, of which the newest counts. Not thread-safe: the
// connection's lock guards the outbox.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "absl/status/statusor.h"
#include "core/transport/tcp/frame.h"
#include "core/transport/tcp/staging.h"

namespace shoal::transport {

// Frames gathered for one system call. Payloads point into regions, nothing is copied but what lies
// in a GPU's memory.
class TcpBatch {
 public:
  bool empty() const { return first_ == count_; }
  bool full() const { return count_ == kFrames || bytes_ >= kMaxPayloadBytes; }
  // Of all payloads of a batch.
  static constexpr size_t kMostPayloadBytes = 2 * kMaxPayloadBytes;
  // Part of a frame is out: nothing else may be sent before its rest.
  bool mid_frame() const { return sent_of_first_ > 0; }
  // The highest write whose last byte is out.
  uint64_t writes_sent() const { return writes_sent_; }

  void Add(const TcpFrame& frame, std::span<const std::byte> payload);
  // As sendmsg(2): bytes taken or -1 with errno. Never blocks: what is left then did not fit.
  ssize_t Send(int socket);

 private:
  static constexpr size_t kFrames = 64;
  void Advance(size_t sent);

  struct Item {
    TcpFrame frame;
    std::span<const std::byte> payload;
    size_t size() const { return sizeof frame + payload.size(); }
  };
  std::array<Item, kFrames> items_;
  size_t first_ = 0;
  size_t count_ = 0;
  size_t bytes_ = 0;
  size_t sent_of_first_ = 0;
  uint64_t writes_sent_ = 0;
};

class TcpOutbox {
 public:
  void AddRead(uint64_t sequence, int region, int64_t offset, size_t size);
  void AddWrite(uint64_t sequence, int region, int64_t offset, std::span<const std::byte> from,
                bool ring, uint32_t immediate);
  void AddReply(uint64_t read_sequence, std::span<const std::byte> from, bool on_gpu);
  // What an acknowledgement tells, and that one is due.
  void SetReceived(uint64_t writes) { writes_received_ = writes; }
  void SetTaken(uint64_t doorbells) { doorbells_taken_ = doorbells; }
  void Acknowledge() { acknowledge_ = true; }
  void Ping() { ping_ = true; }
  void Pong() { pong_ = true; }
  size_t replies() const { return replies_.size(); }

  // Moves what comes next into the batch: small frames first, then data of writes and of replies in
  // turn; what lies in a GPU's memory by way of `staging`, which holds it until the next call.
  // False if there is nothing. An error is the GPU's.
  absl::StatusOr<bool> Fill(TcpBatch& batch, TcpStaging& staging);

 private:
  struct Chunked {
    TcpFrame frame;  // of the whole; chunks differ in offset and length
    std::span<const std::byte> left;
    bool on_gpu = false;
  };
  absl::Status AddChunk(std::deque<Chunked>& from, TcpBatch& batch, TcpStaging& staging);

  std::deque<TcpFrame> requests_;
  std::deque<Chunked> writes_;
  std::deque<Chunked> replies_;
  bool reply_next_ = false;
  bool acknowledge_ = false;
  bool ping_ = false;
  bool pong_ = false;
  uint64_t writes_received_ = 0;
  uint64_t doorbells_taken_ = 0;
};

}  // namespace shoal::transport

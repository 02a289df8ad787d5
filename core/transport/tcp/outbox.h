// What a connection still has to send, and the batch of frames on its way into the socket.
//
// Bounds: max_outstanding of this side for requests and writes, that of the peer for replies;
// acknowledgements, pings and pongs are flags, of which only the latest counts. Not thread-safe:
// the connection's lock guards it.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/transport/tcp/frame.h"
#include "core/transport/tcp/record.h"
#include "core/transport/tcp/staging.h"

namespace shoal::transport {

// Frames gathered for one system call. Payloads point into regions; only GPU memory is copied, and
// what is sealed into records.
class TcpBatch {
 public:
  // From now on frames travel in records. Before the first is added.
  void Encrypt(RecordSealer sealer);

  bool empty() const { return first_ == count_ && unsent_.empty(); }
  bool full() const { return count_ == kFrames || bytes_ >= kMaxPayloadBytes; }
  // The most payload bytes of a batch.
  static constexpr size_t kMostPayloadBytes = 2 * kMaxPayloadBytes;
  // True while a frame is partly sent: nothing else may be sent before its rest.
  bool mid_frame() const { return sent_of_first_ > 0 || !unsent_.empty(); }
  // The highest write whose last byte has been sent, or sealed: its memory is not read any more.
  uint64_t writes_sent() const { return writes_sent_; }

  void Add(const TcpFrame& frame, std::span<const std::byte> payload);
  // Same as sendmsg(2): bytes sent, or -1 with errno. Never blocks: the socket takes what fits.
  ssize_t Send(int socket);
  // Sends a goodbye instead of all that is left, unless a frame is partly sent.
  void SendGoodbye(int socket);

 private:
  static constexpr size_t kFrames = 64;
  using Parts = std::array<iovec, 2 * kFrames>;

  // The next frames, at most so many bytes; returns the number of parts.
  size_t Gather(size_t bytes, Parts& parts) const;
  void Advance(size_t sent);
  void SealRecords();

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

  std::optional<RecordSealer> sealer_;
  std::vector<std::byte> sealed_;
  std::span<const std::byte> unsent_;  // of sealed_
};

class TcpOutbox {
 public:
  void AddRead(uint64_t sequence, int region, int64_t offset, size_t size);
  void AddWrite(uint64_t sequence, int region, int64_t offset, std::span<const std::byte> from,
                bool ring, uint32_t immediate);
  void AddReply(uint64_t read_sequence, std::span<const std::byte> from, bool on_gpu);
  // Sets what an acknowledgement says, and that one is due.
  void SetReceived(uint64_t writes) { writes_received_ = writes; }
  void SetTaken(uint64_t doorbells) { doorbells_taken_ = doorbells; }
  void Acknowledge() { acknowledge_ = true; }
  void Ping() { ping_ = true; }
  void Pong() { pong_ = true; }
  size_t replies() const { return replies_.size(); }

  // Moves what comes next into the batch: small frames first, then data of writes and of replies
  // alternately. GPU memory goes through `staging`, which holds it until the next call. False if
  // there is nothing. An error is the GPU's.
  absl::StatusOr<bool> Fill(TcpBatch& batch, TcpStaging& staging);

 private:
  struct Chunked {
    TcpFrame frame;  // of the whole operation; chunks differ in offset and length
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

// One end of a tcp connection.
//
// Sends: a posting thread while nobody else is sending; the thread that moves bytes takes over when
// the socket is full, or when it is just receiving and a request is to be sent. Receives: the
// thread that moves bytes (sockets.h). Both release mutex_ around system calls and set sending_ or
// receiving_, for which Close waits: afterwards nobody touches regions or memory of operations.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/base/file.h"
#include "core/transport/event_buffer.h"
#include "core/transport/handshake.h"
#include "core/transport/region_table.h"
#include "core/transport/tcp/inbox.h"
#include "core/transport/tcp/outbox.h"
#include "core/transport/tcp/queue.h"
#include "core/transport/tcp/record.h"
#include "core/transport/tcp/sockets.h"
#include "core/transport/tcp/staging.h"
#include "core/transport/transport.h"

namespace shoal::transport {

// What the peer says about itself in Hello and Welcome.
struct TcpPeer {
  std::vector<RemoteRegion> regions;
  int64_t max_outstanding = 0;
};

class TcpConnectionState final : public PollListener,
                                 private TcpInbox::Handler,
                                 public std::enable_shared_from_this<TcpConnectionState> {
 public:
  // `gpu` copies where GPU memory is exposed, and may be null. `secret` is kept until the acceptor
  // takes it.
  TcpConnectionState(const ConnectionOptions& options, std::shared_ptr<const RegionTable> table,
                     const std::shared_ptr<GpuMemory>& gpu, std::string secret = "");

  uint64_t id() const { return id_; }
  const std::string& peer() const { return options_.peer; }
  const ConnectionOptions& options() const { return options_; }
  std::string TakeSecret() { return std::exchange(secret_, {}); }  // for one thread, once

  // Call when the handshake is done; first sends `welcome` (a frame, or nothing on the connecting
  // side). False, with nothing sent, if the connection was closed meanwhile or the socket fails.
  bool Open(UniqueFd socket, TcpPeer peer, const TcpSecrets& secrets, const std::string& welcome)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PostReads(std::span<const ReadOperation> operations) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PostWrites(std::span<const WriteOperation> operations) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<int64_t> remote_region_sizes() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the connection; safe to call from several threads, and returns when it has ended. `why`
  // goes into kClosed.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // For the thread that moves bytes; Tick for the I/O thread.
  void Receive() ABSL_LOCKS_EXCLUDED(mutex_);
  void Send() ABSL_LOCKS_EXCLUDED(mutex_);
  void Tick() ABSL_LOCKS_EXCLUDED(mutex_);

  // PollListener
  void Polled(Event::Kind kind) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Phase { kHandshake, kOpen, kClosing, kClosed };
  struct OutstandingRead {
    uint64_t operation = 0;
    std::span<std::byte> into;
    size_t received = 0;
  };

  absl::StatusOr<std::span<std::byte>> BeginFrame(const TcpFrame& frame) override;
  absl::Status EndFrame(const TcpFrame& frame) override;
  absl::StatusOr<std::span<std::byte>> BeginData(const TcpFrame& frame);
  absl::StatusOr<std::span<std::byte>> BeginWrite(const TcpFrame& frame);
  void EndData(const TcpFrame& frame);
  absl::Status EndWrite(const TcpFrame& frame);
  absl::Status TakeRead(const TcpFrame& frame);
  absl::Status TakeAcknowledgement(const TcpFrame& frame);

  absl::Status CheckUsable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AwaitWritable(bool wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FailOutstanding(const absl::Status& status, std::vector<PendingEvent>& events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  PendingEvent Make(Event::Kind kind, uint64_t operation, uint32_t immediate, absl::Status status);

  const uint64_t id_;
  const ConnectionOptions options_;
  const std::shared_ptr<TcpQueue::Inner> queue_;
  const std::shared_ptr<TcpSockets> sockets_;
  const std::shared_ptr<const RegionTable> table_;
  std::string secret_;
  std::vector<bool> exposed_on_gpu_;  // by region; constant
  OutstandingOperations outstanding_;

  mutable absl::Mutex mutex_;
  Phase phase_ ABSL_GUARDED_BY(mutex_) = Phase::kHandshake;
  UniqueFd socket_ ABSL_GUARDED_BY(mutex_);
  TcpPeer peer_ ABSL_GUARDED_BY(mutex_);
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;
  bool receiving_ ABSL_GUARDED_BY(mutex_) = false;
  bool awaiting_writable_ ABSL_GUARDED_BY(mutex_) = false;
  bool send_broken_ ABSL_GUARDED_BY(mutex_) = false;
  TcpOutbox outbox_ ABSL_GUARDED_BY(mutex_);
  uint64_t writes_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<OutstandingRead> reads_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint64_t> writes_ ABSL_GUARDED_BY(mutex_);  // operations
  uint64_t reads_posted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t writes_posted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t doorbells_posted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t doorbells_taken_there_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t doorbells_taken_ ABSL_GUARDED_BY(mutex_) = 0;  // doorbells polled here
  uint64_t credit_given_ ABSL_GUARDED_BY(mutex_) = 0;     // of these, reported to the peer
  int silent_ticks_ ABSL_GUARDED_BY(mutex_) = 0;
  bool heard_ ABSL_GUARDED_BY(mutex_) = false;

  // Owned by the thread that set sending_.
  TcpBatch batch_;
  TcpStaging sent_staging_;

  // Owned by the thread that set receiving_.
  TcpInbox inbox_;
  TcpStaging received_staging_;
  // of the current frame; empty: the payload is in place
  std::span<const std::byte> staged_payload_;
  uint64_t reads_received_ = 0;
  uint64_t writes_received_ = 0;
  uint64_t doorbells_received_ = 0;
  bool goodbye_ = false;
  std::vector<PendingEvent> arrived_;
};

}  // namespace shoal::transport

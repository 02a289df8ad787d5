// One end of a verbs connection: operations become work on its rails, completions and arriving
// messages become events.
//
// Rails. The first carries all writes, doorbells and messages, so their order is that of one queue
// pair. Large reads are spread over all rails. Another rail that fails is given up and its reads go
// over the first; if the first fails the connection ends (the client reconnects).
//
// Doorbells are counted: a peer may have at most `doorbells` (of its answer or offer) doorbells
// that it has not yet been told were polled (Credit), and that many receives are always posted.
//
// Ends. An error completion, a goodbye, a malformed message, a device event, silence or Close()
// ends the connection: the queue pairs are reset, which stops all transfers, outstanding operations
// complete, and kClosed follows. Finding out what happened to the writes is up to the layer above
// (a server knows which pushes it applied).
//
// Locks: the queue's mutex, then mutex_. Progress, End, Tick, Arm and HearEvent are for the queue
// and need its mutex; posts take only mutex_.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/event_buffer.h"
#include "core/transport/transport.h"
#include "core/transport/verbs/memory.h"
#include "core/transport/verbs/queue.h"
#include "core/transport/verbs/rail.h"
#include "core/transport/verbs/wire.h"

namespace shoal::transport {

// How often the service thread looks at connections within the time after which a silent peer
// counts as dead.
inline constexpr int kTicksPerKeepAlive = 4;

class VerbsConnectionState : public std::enable_shared_from_this<VerbsConnectionState> {
 public:
  struct Terms {
    int64_t doorbells_here = 0;  // the most that may wait at this end
    std::string secret;          // acceptor: what the peer must show; connector: what to show
    bool is_acceptor = false;
  };
  VerbsConnectionState(const ConnectionOptions& options, const VerbsOptions& verbs,
                       std::shared_ptr<VerbsQueueCore> queue,
                       std::shared_ptr<const RegistrationTable> table,
                       std::shared_ptr<GpuRegistrar> gpus, const Terms& terms);
  ~VerbsConnectionState();

  uint64_t id() const { return id_; }
  const std::string& peer() const { return options_.peer; }
  const std::shared_ptr<VerbsQueueCore>& queue() const { return queue_; }

  // Takes rails whose queue pairs are connected: the connection awaits the peer's greeting on each,
  // or greets the peer itself.
  absl::Status Start(std::vector<std::unique_ptr<ConnectionRail>> rails, int64_t doorbells_there)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool open() const { return phase_.load() == Phase::kOpen; }
  bool ended() const { return phase_.load() == Phase::kEnded; }
  absl::Status end_status() const ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status PostReads(std::span<const ReadOperation> operations) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status PostWrites(std::span<const WriteOperation> operations) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<int64_t> remote_region_sizes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Says goodbye, waits briefly for it to arrive, and ends. `why` goes into kClosed.
  void Close(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

  // For the queue.
  void Progress(EventSink& sink) ABSL_LOCKS_EXCLUDED(mutex_);
  void End(const absl::Status& why, EventSink& sink) ABSL_LOCKS_EXCLUDED(mutex_);
  void Tick(EventSink& sink) ABSL_LOCKS_EXCLUDED(mutex_);
  void Arm(EventSink& sink) ABSL_LOCKS_EXCLUDED(mutex_);
  void HearEvent(const ibv_cq* cq) ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether there is work that did not fit a send queue.
  bool HasWaiting() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Call when an event has been delivered to the polling thread.
  void Delivered(Event::Kind kind) {
    if (kind == Event::Kind::kDoorbell) {
      doorbells_polled_.fetch_add(1, std::memory_order_relaxed);
    } else if (kind != Event::Kind::kClosed) {
      outstanding_.Polled(kind);
    }
  }
  // Tells the peer that doorbells were polled, if that is due.
  void GiveCredit() ABSL_LOCKS_EXCLUDED(mutex_);

  // For device events: a queue pair's number, or kAnyQueuePair.
  static constexpr uint32_t kAnyQueuePair = UINT32_MAX;
  bool Uses(const ibv_context* context, uint32_t queue_pair) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class Phase { kHandshake, kOpen, kEnded };
  struct Outstanding {
    uint64_t id = 0;
    Event::Kind kind = Event::Kind::kReadDone;
    uint32_t pieces = 0;  // not ended yet
  };

  absl::Status CheckUsable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return open() && !closing_ && failed_.ok() ? absl::OkStatus() : WhyUnusable();
  }
  absl::Status WhyUnusable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint32_t NewOperation(uint64_t id, Event::Kind kind) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddRead(const ReadOperation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddWrite(const WriteOperation& operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Completes empty reads, which need no device.
  void CompleteEmpty(std::span<const ReadOperation> operations) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the size of the next piece: up to the end of a chunk on either side, and at most the
  // largest.
  size_t PieceBytes(std::span<const std::byte> memory, const Registration& local, int region,
                    int64_t offset) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t LargestPiece() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fills in the keys and the remote address, which differ from rail to rail.
  void Address(Work& work, const ConnectionRail& rail, const Registration& local) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool HasRoomFor(int64_t rings) const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t NextRail() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Posts on all rails what waits. A failure ends the connection at the next look (failed_).
  void PostWaiting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // The first rail comes last: it takes over the work of a rail that is given up.
    for (size_t index = rails_.size(); index-- > 0;) {
      if (rails_[index] != nullptr && rails_[index]->sends().pending()) {
        PostOn(index);
      }
    }
  }
  void PostOn(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Handles completions.
  bool DriveRail(size_t index, EventSink& sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeCompletion(size_t index, const ibv_wc& completion, EventSink& sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeError(size_t index, const ibv_wc& completion, EventSink& sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeReceive(size_t index, const ibv_wc& completion, EventSink& sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeDoorbell(size_t index, uint32_t immediate, EventSink& sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeMessage(size_t index, std::span<const std::byte> bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakeGreeting(size_t index, ReceivedMessage message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DrainRail(size_t index, EventSink& sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndWork(ConnectionRail& rail, const Work& work, EventSink& sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndOperation(const Work& work, const absl::Status& status, EventSink& sink)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteGpu(const Registration& target) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes what has arrived visible to GPUs, before anybody learns of it. False if that fails.
  bool AwaitGpus() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveUpRail(size_t index, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CreditIsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return doorbells_polled_.load(std::memory_order_relaxed) - credit_given_ >= credit_step_;
  }
  void GiveCreditLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLocked(const absl::Status& why, EventSink& sink) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SayGoodbye() ABSL_LOCKS_EXCLUDED(mutex_);
  bool GoodbyeIsOut() const ABSL_LOCKS_EXCLUDED(mutex_);

  const uint64_t id_;
  const ConnectionOptions options_;
  const VerbsOptions verbs_;
  const Terms terms_;
  const uint64_t credit_step_;  // credit is given for this many doorbells at once
  const std::shared_ptr<VerbsQueueCore> queue_;
  OutstandingOperations outstanding_;
  const std::shared_ptr<const RegistrationTable> table_;
  const std::shared_ptr<GpuRegistrar> gpus_;  // null without GPUs
  std::atomic<uint64_t> doorbells_polled_{0};
  std::atomic<Phase> phase_{Phase::kHandshake};

  mutable absl::Mutex mutex_;
  RegistrationCache cache_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<ConnectionRail>> rails_ ABSL_GUARDED_BY(mutex_);  // null: given up
  std::vector<RemoteRegion> remote_regions_ ABSL_GUARDED_BY(mutex_);
  size_t largest_piece_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t next_rail_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Outstanding> operations_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_operations_ ABSL_GUARDED_BY(mutex_);
  // One registration on each GPU that this connection moves bytes into.
  std::vector<GpuRegistration> gpu_targets_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;  // no more posts
  bool goodbye_heard_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);  // not OK: the connection is to be ended
  absl::Status end_status_ ABSL_GUARDED_BY(mutex_);
  int64_t doorbells_there_ ABSL_GUARDED_BY(mutex_) = 0;  // the most that may wait at the peer
  uint64_t rung_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t polled_there_ ABSL_GUARDED_BY(mutex_) = 0;  // doorbells polled at the peer, as it told
  uint64_t doorbells_heard_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t credit_given_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace shoal::transport

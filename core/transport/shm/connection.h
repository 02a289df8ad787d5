// One end of a shm connection: copies to and from the peer's mapped regions in the posting thread.
//
// Locks: a post holds post_mutex_ while it copies; Close takes it, so a post in progress stops at
// its next chunk. Doorbells are taken under the queue's mutex. close_mutex_ makes every Close()
// return only after the first one has finished.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/transport/event_buffer.h"
#include "core/transport/region_table.h"
#include "core/transport/shm/control.h"
#include "core/transport/shm/handshake.h"
#include "core/transport/shm/queue.h"
#include "core/transport/transport.h"

namespace shoal::transport {

class ShmConnectionState {
 public:
  // Adds itself to the queue: a kClosed event will come from here on. `gpu` copies where an
  // operation names GPU memory, and may be null. `control` is mapped memory of a ShmControl.
  static std::shared_ptr<ShmConnectionState> Create(const ConnectionOptions& options,
                                                    std::shared_ptr<const RegionTable> table,
                                                    std::shared_ptr<GpuMemory> gpu,
                                                    SharedMemory control, bool is_connector);
  ~ShmConnectionState();

  uint64_t id() const { return id_; }
  const std::string& peer() const { return options_.peer; }
  const std::vector<std::shared_ptr<Region>>& exposed() const { return options_.exposed; }
  bool exposes_gpu_memory() const;
  bool opens_gpu_memory() const { return options_.opens_gpu_memory; }
  const ShmQueueWake& queue_wake() const { return *queue_wake_; }
  const SharedMemory& control() const { return control_; }
  const std::shared_ptr<GpuMemory>& gpu() const { return gpu_; }

  // Call when the handshake is done. False if the connection has been closed meanwhile.
  bool Open(PeerMemory peer);
  absl::Status PostReads(std::span<const ReadOperation> operations);
  absl::Status PostWrites(std::span<const WriteOperation> operations);
  std::vector<int64_t> remote_region_sizes() const;

  // Ends access to this side's regions, waiting up to `patience` for a peer that is within them.
  // The kClosed event carries the first reason given. True for the first call.
  bool Close(const absl::Status& why, absl::Duration patience);

  // For the queue; needs its mutex.
  bool HasDoorbells() const;
  size_t TakeDoorbells(std::span<Event> events);
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  Event ClosedEvent();

 private:
  // A GPU's copy between memory of this side and a region of the peer.
  struct GpuTransfer {
    std::byte* own = nullptr;
    int region = 0;
    int64_t offset = 0;
    size_t bytes = 0;
  };
  enum class Direction : uint8_t { kFromPeer, kToPeer };

  ShmConnectionState(const ConnectionOptions& options, std::shared_ptr<const RegionTable> table,
                     std::shared_ptr<GpuMemory> gpu, SharedMemory control, bool is_connector);
  absl::Status CheckUsable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(post_mutex_);
  // Whether a GPU must copy between `own` memory and that region of the peer: one of them is GPU
  // memory.
  bool ByGpu(std::span<const std::byte> own, int region) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(post_mutex_);
  absl::Status Copy(std::byte* to, const std::byte* from, size_t size, bool past_caches)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(post_mutex_);
  // Enters the gate once for each batch of at most kGpuBatchBytes.
  absl::Status CopyByGpu(std::span<const GpuTransfer> transfers, Direction direction)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(post_mutex_);
  absl::Status RunGpuBatch(std::vector<GpuCopy>& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(post_mutex_);
  // What a GPU copies to or from.
  std::span<std::byte> GpuSide(int region) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(post_mutex_);
  // Runs once for each piece of the peer's host memory that a GPU copies to or from.
  void PinPiece(int region, size_t piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(post_mutex_);
  // Copies, together, the operations at the front that need a GPU. Returns how many.
  size_t ReadByGpu(std::span<const ReadOperation> operations)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(post_mutex_);
  void ForgetPeerMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(post_mutex_);
  void PushCompletion(std::vector<PendingEvent>& done, Event::Kind kind, uint64_t operation,
                      absl::Status status);
  void NotifyPeer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(post_mutex_);

  const uint64_t id_;
  const ConnectionOptions options_;
  ShmQueue* const queue_;
  const std::shared_ptr<const ShmQueueWake> queue_wake_;
  const std::shared_ptr<const RegionTable> table_;
  const std::shared_ptr<GpuMemory> gpu_;
  const SharedMemory control_;
  const std::shared_ptr<OutstandingOperations> outstanding_;

  mutable absl::Mutex post_mutex_;
  Gate peer_gate_ ABSL_GUARDED_BY(post_mutex_);
  DoorbellSender doorbell_sender_ ABSL_GUARDED_BY(post_mutex_);
  std::optional<PeerMemory> peer_memory_ ABSL_GUARDED_BY(post_mutex_);
  struct Pinning {
    std::vector<bool> pieces;  // which are pinned
    bool refused = false;      // do not try any more
  };
  std::vector<Pinning> pinnings_ ABSL_GUARDED_BY(post_mutex_);  // by region of the peer

  // Used only under the queue's mutex.
  DoorbellReceiver doorbell_receiver_;
  bool ring_broken_ = false;
  int64_t doorbells_after_end_ = 0;

  std::atomic<bool> closing_{false};   // posts stop
  std::atomic<bool> finished_{false};  // no more completions will be pushed
  std::atomic<bool> closed_here_{false};
  absl::Mutex close_mutex_;
  Gate own_gate_ ABSL_GUARDED_BY(close_mutex_);
  absl::Status close_status_ ABSL_GUARDED_BY(close_mutex_);
};

}  // namespace shoal::transport

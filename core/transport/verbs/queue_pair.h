// A reliable queue pair with its completion queue, from creation to its end.
//
// A queue pair's number must not be reused while a peer may still send to the old one. So an ended
// queue pair is first reset, which ends the peer's access and every transfer at once but keeps the
// number, and is destroyed only after some time in QueuePairQuarantine, when no peer retries
// anything to it any more. Software devices (rdma_rxe) differ: they reuse numbers last, only
// destruction waits for a packet that is being copied, and a reset during that copy has been seen
// to crash the kernel (Linux 6.1). Their queue pairs are destroyed at once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/transport/verbs/device.h"
#include "core/transport/verbs_options.h"

namespace shoal::transport {

// What a peer must know of one end of a queue pair, and what that end adheres to.
struct QueuePairEnd {
  uint32_t number = 0;
  // the first one; random, so that no old packet is taken for a new one
  uint32_t packet_sequence = 0;
  uint16_t lid = 0;
  Gid gid{};
  int mtu_bytes = 0;
  int reads_as_target = 0;
};

struct QueueDepths {
  int sends = 0;
  int receives = 0;
};

// A nonblocking file descriptor at which the events of completion queues arrive.
class CompletionChannel {
 public:
  static absl::StatusOr<std::shared_ptr<CompletionChannel>> Create(
      std::shared_ptr<VerbsDevice> device);
  ~CompletionChannel() { device_->api().DestroyCompChannel(channel_); }
  ibv_comp_channel* get() const { return channel_; }
  int fd() const { return channel_->fd; }
  // Returns the completion queue of the next event, acknowledged; null if there is none. It may
  // have ended already.
  ibv_cq* TakeEvent();

 private:
  CompletionChannel(std::shared_ptr<VerbsDevice> device, ibv_comp_channel* channel)
      : device_(std::move(device)), channel_(channel) {}
  const std::shared_ptr<VerbsDevice> device_;
  ibv_comp_channel* const channel_;
};

// Holds ended queue pairs until they may be destroyed. Thread-safe.
class QueuePairQuarantine;

class QueuePair {
 public:
  // The channel reports the completion queue's events. InvalidArgument or ResourceExhausted if the
  // device cannot hold this many.
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(
      std::shared_ptr<VerbsDevice> device, std::shared_ptr<CompletionChannel> channel,
      const QueueDepths& depths, int inline_bytes, std::shared_ptr<QueuePairQuarantine> quarantine);
  ~QueuePair() { End(); }
  // Stops the peer's access, except for a packet that is being copied. Windows bound to the queue
  // pair can be freed after this, and must be before End, which may wait for them.
  void Stop();
  // Nothing is transferred any more once this returns. Both are idempotent.
  void End();

  // Moves to INIT: receives can be posted. Peers may read, and write if anything is writable.
  absl::Status Initialize(const PortDescription& port, bool writable);
  // Moves to RTR and RTS: both sides can reach each other.
  absl::Status Connect(const PortDescription& port, int gid_index, const QueuePairEnd& self,
                       const QueuePairEnd& peer, const VerbsOptions& options);

  const VerbsDevice& device() const { return *device_; }
  VerbsApi& api() const { return device_->api(); }
  ibv_qp* qp() const { return qp_; }
  ibv_cq* cq() const { return cq_; }
  uint32_t number() const { return qp_->qp_num; }
  int inline_bytes() const { return inline_bytes_; }

 private:
  QueuePair(std::shared_ptr<VerbsDevice> device, std::shared_ptr<CompletionChannel> channel,
            std::shared_ptr<QueuePairQuarantine> quarantine)
      : device_(std::move(device)),
        channel_(std::move(channel)),
        quarantine_(std::move(quarantine)) {}

  const std::shared_ptr<VerbsDevice> device_;
  const std::shared_ptr<CompletionChannel> channel_;
  const std::shared_ptr<QueuePairQuarantine> quarantine_;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  int inline_bytes_ = 0;
};

class QueuePairQuarantine {
 public:
  // `stay` must exceed the time for which a peer retries: VerbsOptions' retries.
  explicit QueuePairQuarantine(absl::Duration stay) : stay_(stay) {}
  ~QueuePairQuarantine() { Release(absl::InfiniteFuture()); }

  struct Ended {
    std::shared_ptr<VerbsDevice> device;
    std::shared_ptr<CompletionChannel> channel;
    ibv_qp* qp = nullptr;
    ibv_cq* cq = nullptr;
    absl::Time until;
  };
  void Take(Ended ended);
  // Destroys those whose time is over.
  void Release(absl::Time now);
  static void Destroy(const Ended& ended);

 private:
  // Beyond this many the oldest is destroyed early: numbers are 24 bits wide, and devices hold
  // thousands.
  static constexpr size_t kMost = 1024;

  const absl::Duration stay_;
  absl::Mutex mutex_;
  std::deque<Ended> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::transport

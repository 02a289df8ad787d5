// A reliable queue pair with its completion queue, from creation to its end.
//
// Numbers of queue pairs must not come back while a peer may still send to the old one: an ended
// queue pair is first reset, which ends the peer's access and every transfer at once but keeps the
// number, and destroyed only after a while in QueuePairQuarantine, when no peer repeats anything to
// it any more. Software devices (rdma_rxe) are another matter: their numbers come back last, only
// destruction waits for a packet that is being copied, and a reset meanwhile has been seen to bring
// the kernel down (Linux 6.1). Theirs are destroyed at once.
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

// What a peer must know of one end of a queue pair, and what the end keeps to.
struct QueuePairEnd {
  uint32_t number = 0;
  uint32_t packet_sequence = 0;  // the first; random, so that nothing old is taken for new
  uint16_t lid = 0;
  Gid gid{};
  int mtu_bytes = 0;
  int reads_as_target = 0;
};

struct QueueDepths {
  int sends = 0;
  int receives = 0;
};

// Where the events of completion queues arrive: a nonblocking file descriptor.
class CompletionChannel {
 public:
  static absl::StatusOr<std::shared_ptr<CompletionChannel>> Create(
      std::shared_ptr<VerbsDevice> device);
  ~CompletionChannel() { device_->api().DestroyCompChannel(channel_); }
  ibv_comp_channel* get() const { return channel_; }
  int fd() const { return channel_->fd; }
  // The completion queue of the next event, acknowledged; null if there is none. It may be one that
  // has ended.
  ibv_cq* TakeEvent();

 private:
  CompletionChannel(std::shared_ptr<VerbsDevice> device, ibv_comp_channel* channel)
      : device_(std::move(device)), channel_(channel) {}
  const std::shared_ptr<VerbsDevice> device_;
  ibv_comp_channel* const channel_;
};

// Ended queue pairs until they may be destroyed. Thread-safe.
class QueuePairQuarantine;

class QueuePair {
 public:
  // The channel hears of the completion queue's events. InvalidArgument or ResourceExhausted if the
  // device cannot hold this.
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(
      std::shared_ptr<VerbsDevice> device, std::shared_ptr<CompletionChannel> channel,
      const QueueDepths& depths, int inline_bytes, std::shared_ptr<QueuePairQuarantine> quarantine);
  ~QueuePair() { End(); }
  // Stops the peer's access but for a packet that is being copied. Windows bound to the queue pair
  // can go after this, and must before End, which may wait for them.
  void Stop();
  // When this returns nothing is transferred any more. Both are idempotent.
  void End();

  // To INIT: receives can be posted. Peers may read, and write if there is anything for them to
  // write to.
  absl::Status Initialize(const PortDescription& port, bool writable);
  // To RTR and RTS: the peer can be reached and reach us.
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
  // Longer than a peer goes on repeating what it sent: VerbsOptions' retries.
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
  // Beyond this many the oldest goes early: numbers are 24 bits wide, and devices hold thousands.
  static constexpr size_t kMost = 1024;

  const absl::Duration stay_;
  absl::Mutex mutex_;
  std::deque<Ended> ended_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::transport

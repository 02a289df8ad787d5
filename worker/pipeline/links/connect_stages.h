// Connects a stage with its neighbours for an attempt at a step: lower stages call higher ones,
// over gRPC (stage_service.h takes the calls), and each pair settles on one of the job's
// transports. Both ends log which one, and why not the first.
//
// A transport by which two processes open memory of each other's GPUs (shm) counts as two: with
// messages on the GPUs, which may be the same one, and with messages on the host. The first is
// called kCudaIpc and preferred to all others if this stage has a device.
//
// Before new connections, the stage waits for device memory lent to a neighbour for earlier ones,
// so that the device does not hold it twice; not forever, as a neighbour may hang.
//
// One thread calls Connect; Cancel may be called from any. Blocks until all neighbours are
// connected or the time is up; errors name the stage.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/plan/schedule/schedule_queues.h"
#include "core/transport/transport.h"
#include "worker/peers/stage_client.h"
#include "worker/peers/stage_group.h"
#include "worker/peers/stage_service.h"
#include "worker/pipeline/links/transport_links.h"

namespace shoal::worker {

// Its name in handshakes, logs and metrics.
inline constexpr std::string_view kCudaIpc = "cuda_ipc";

// The memory of a pair of stages' messages, in each direction. Both sides compute the same.
struct LinkMemory {
  LinkCapacity slots;    // here, of what the peer sends
  LinkCapacity buffers;  // here, of what goes to the peer
  LinkCapacity peer_slots;
  LinkCapacity peer_buffers;

  bool Covers(const LinkMemory& needed) const {
    return slots.Covers(needed.slots) && buffers.Covers(needed.buffers) &&
           peer_slots.Covers(needed.peer_slots) && peer_buffers.Covers(needed.peer_buffers);
  }
};
// For `stage` with `peer`, and messages of up to `longest` bytes.
LinkMemory MemoryBetween(std::span<const plan::MessageQueue> queues, int stage, int peer,
                         int64_t longest);

class StageConnections {
 public:
  struct Options {
    StageGroup group;
    std::vector<transport::Transport*> transports;  // by preference
    std::string preferred;                          // of the job, whether available or not
    std::vector<std::string> unavailable;           // unavailable transports, with the reason
    Device* device = nullptr;  // for messages, if both sides reach it; may be null
    Memory* host = nullptr;    // for the others, as in LinkRegions::Options
    // Of one call. A neighbour that has not reached the attempt is called again until the time is
    // up.
    absl::Duration call_timeout = absl::Seconds(10);
    // How long neighbours have to close the device's memory that they opened.
    absl::Duration parting_patience = absl::Seconds(10);
  };
  // `client` and `service` must outlive it.
  StageConnections(Options options, StageClient* client, StageService* service);

  // By stage, like `neighbours`, to whom there must be no links any more.
  using Links = std::map<int, std::unique_ptr<TransportLinks>>;
  absl::StatusOr<Links> Connect(const std::map<int, LinkMemory>& neighbours,
                                const StepAttempt& attempt, absl::Duration timeout);

  // Makes Connect, and every later one, end with `why`.
  void Cancel(const absl::Status& why);

  // Connections over a transport other than the job's first.
  int64_t fallbacks() const { return fallbacks_; }
  // Whether messages with some stage have gone over the host though this one has a device.
  bool passed_host() const { return passed_host_; }
  // The latest with each stage. Only on the thread that calls Connect.
  const std::map<int, proto::DataConnection>& connections() const { return connections_; }

 private:
  absl::StatusOr<Links> ConnectExpected(const std::map<int, LinkMemory>& neighbours,
                                        const StepAttempt& attempt, absl::Time deadline);
  void AwaitLentMemory(const std::map<int, LinkMemory>& neighbours);
  absl::StatusOr<std::unique_ptr<TransportLinks>> NewLinks(int stage, size_t path,
                                                           const LinkMemory& memory);
  absl::StatusOr<std::unique_ptr<TransportLinks>> Call(int stage, const LinkMemory& memory,
                                                       const StepAttempt& attempt,
                                                       absl::Time deadline);
  // Retries until answered; the call is idempotent.
  absl::Status AskUntil(int stage, const proto::ConnectStageRequest& request, absl::Time deadline);
  absl::StatusOr<transport::TakenOffer> Accept(const proto::ConnectStageRequest& request,
                                               const LinkMemory& memory);
  void Tell(int stage, const std::string& path, const std::string& reason);
  absl::Status cancelled() const;

  struct Path {
    transport::Transport* transport = nullptr;
    bool on_device = false;  // messages lie on the device; else on the host
  };

  const Options options_;
  const std::string best_;          // the best of all paths, available or not
  std::vector<Path> paths_;         // by preference
  std::vector<std::string> names_;  // of the paths
  std::vector<std::string> unavailable_;
  StageClient* const client_;
  StageService* const service_;
  std::atomic<int64_t> fallbacks_ = 0;
  std::atomic<bool> passed_host_ = false;
  std::map<int, proto::DataConnection> connections_;
  std::vector<LentMemory> lent_;  // of the device, by stage

  struct Accepted {
    std::unique_ptr<TransportLinks> links;
    std::string reason;
  };
  mutable absl::Mutex mutex_;
  std::map<int, Accepted> accepted_ ABSL_GUARDED_BY(mutex_);  // of the current attempt
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::worker

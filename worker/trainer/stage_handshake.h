// Connects a stage with its neighbours for an attempt at a step: lower stages call higher ones,
// over gRPC (stage_door.h takes the calls), and each pair settles on one of the job's transports.
// Which one, and why not the first, is logged at both ends.
//
// One thread calls Connect; Cancel may come from any. Blocks until all neighbours are connected or
// the time is up; errors name the stage.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "plan/schedule_queues.h"
#include "transport/transport.h"
#include "worker/pipeline/transport_links.h"
#include "worker/trainer/stage_door.h"
#include "worker/trainer/stage_group.h"
#include "worker/trainer/stage_port.h"

namespace shoal::worker {

// What the messages of a pair of stages take of memory, each way. Both sides find the same.
struct LinkMemory {
  int64_t slot_bytes = 0;    // here, of what the peer sends
  int64_t buffer_bytes = 0;  // here, of what goes to the peer
  int64_t peer_slot_bytes = 0;
  int64_t peer_buffer_bytes = 0;

  bool Covers(const LinkMemory& needed) const {
    return slot_bytes >= needed.slot_bytes && buffer_bytes >= needed.buffer_bytes &&
           peer_slot_bytes >= needed.peer_slot_bytes &&
           peer_buffer_bytes >= needed.peer_buffer_bytes;
  }
};
// Of `stage` with `peer`, for messages of up to `longest` bytes.
LinkMemory MemoryBetween(std::span<const plan::MessageQueue> queues, int stage, int peer,
                         int64_t longest);

class StageHandshake {
 public:
  struct Options {
    StageGroup group;
    std::vector<transport::Transport*> transports;  // in order of preference
    std::string preferred;                          // of the job, whether it is there or not
    std::vector<std::string> unavailable;  // transports that are not there, with the reason
    Memory* memory = nullptr;              // for messages, as TransportLinksOptions
    // Of one call. A neighbour that has not come to the attempt is called again until the time is
    // up.
    absl::Duration call_timeout = absl::Seconds(10);
  };
  // Port and door outlive it.
  StageHandshake(Options options, StagePort* port, StageDoor* door);

  // By stage, as `neighbours`.
  using Links = std::map<int, std::unique_ptr<TransportLinks>>;
  absl::StatusOr<Links> Connect(const std::map<int, LinkMemory>& neighbours,
                                const StepAttempt& attempt, absl::Duration timeout);

  // Connect ends with `why`, as does every later one.
  void Cancel(const absl::Status& why);

  // Connections over another transport than the job's first.
  int64_t fallbacks() const { return fallbacks_; }
  // The newest with each stage. On the thread that calls Connect.
  const std::map<int, proto::DataConnection>& connections() const { return connections_; }

 private:
  absl::StatusOr<Links> ConnectExpected(const std::map<int, LinkMemory>& neighbours,
                                        const StepAttempt& attempt, absl::Time deadline);
  absl::StatusOr<std::unique_ptr<TransportLinks>> NewLinks(size_t transport,
                                                           const LinkMemory& memory) const;
  absl::StatusOr<std::unique_ptr<TransportLinks>> Call(int stage, const LinkMemory& memory,
                                                       const StepAttempt& attempt,
                                                       absl::Time deadline);
  // Until it answers: a repeated call does no harm.
  absl::Status AskUntil(int stage, const proto::ConnectStageRequest& request, absl::Time deadline);
  absl::StatusOr<transport::TakenOffer> Accept(const proto::ConnectStageRequest& request,
                                               const LinkMemory& memory);
  void Tell(int stage, const std::string& transport, const std::string& reason);
  absl::Status cancelled() const;

  const Options options_;
  std::vector<std::string> names_;  // of the transports
  StagePort* const port_;
  StageDoor* const door_;
  std::atomic<int64_t> fallbacks_ = 0;
  std::map<int, proto::DataConnection> connections_;

  struct Accepted {
    std::unique_ptr<TransportLinks> links;
    std::string reason;
  };
  mutable absl::Mutex mutex_;
  std::map<int, Accepted> accepted_ ABSL_GUARDED_BY(mutex_);  // of the attempt at hand
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::worker

// How a worker meets others to settle whether they exchange among themselves, by collectives: the
// caller's side of peer_door.h, for all workers of a job or the stages of a pipeline.
//
// Threads: one calls Meet; Cancel may come from any. Failure: workers that do not come are
// DeadlineExceeded; Cancel's reason where that was called. What port and door do for it ends with
// their own Cancel and Close.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/shoal.pb.h"
#include "worker/backend/backend.h"
#include "worker/collectives/collectives.h"
#include "worker/machine/open_machine.h"
#include "worker/trainer/peer_door.h"
#include "worker/trainer/stage_group.h"
#include "worker/trainer/stage_port.h"

namespace shoal::worker {

// What a worker takes part with, or why it cannot. `gpu` is null where it computes on the CPU,
// `open` may be empty (OpenedMachine).
absl::StatusOr<std::unique_ptr<Collectives>> OpenCollectives(const Device* gpu,
                                                             const CollectivesOpener& open);

class PeerMeeting {
 public:
  struct Options {
    StageGroup peers;
    StagePort* port = nullptr;                  // to them
    PeerDoor* door = nullptr;                   // of this worker; the first of them calls by itself
    const Collectives* collectives = nullptr;   // null: this worker cannot take part,
    std::string unavailable;                    // for that reason
    absl::Duration timeout = absl::Minutes(2);  // for all of them to come
    absl::Duration call_timeout = absl::Seconds(10);  // of one call
  };
  explicit PeerMeeting(Options options) : options_(std::move(options)) {}

  // Blocks until all have come. `check` says whether to go on.
  absl::StatusOr<proto::MeetPeersReply> Meet(const StepAttempt& attempt, int64_t generation,
                                             const std::function<absl::Status()>& check)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Cancel(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  int rank() const { return options_.peers.stage; }
  int ranks() const { return options_.peers.stages(); }
  proto::MeetPeersRequest RequestFor(const StepAttempt& attempt, int64_t generation) const;

  const Options options_;
  absl::Mutex mutex_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace shoal::worker

// Settles on a communicator: all workers call the first of them and get the same answer when all
// have called. So either all exchange weights and gradients, or none does, for a reason that all
// know.
//
// Calls are for an attempt at a step. A later attempt's call ends an earlier one; until then the
// answer stays, and a worker that lost it calls again. No call waits longer than `patience`.
//
// Thread-safe. Checks what callers, on other machines, say.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/worker.pb.h"
#include "worker/peers/stage_group.h"

namespace shoal::worker {

class PeerService {
 public:
  explicit PeerService(absl::Duration patience) : patience_(patience) {}

  // Unavailable: call again. FailedPrecondition and InvalidArgument are for good; NotFound (another
  // job) and PermissionDenied (other peers) for as long as this worker has that part.
  absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(
      const proto::JoinRendezvousRequest& request);

  // Makes a communicator's id; called under a lock. Call Open once a job, on its first worker
  // alone.
  using NewId = std::function<absl::StatusOr<std::string>()>;
  void Open(const WorkerGroup& peers, NewId new_id);
  // Ends waiting calls, and later ones, with `why`. Does not call new_id afterwards.
  void Close(const absl::Status& why);
  // Forgets the job, which is over: Open may be called for the next. Calls that wait are to be
  // made again.
  void Reset();

 private:
  struct Peer {
    bool here = false;
    std::string gpu;
    int version = 0;
    std::string unavailable;
    bool on_gpu = false;
  };
  absl::Status CheckCaller(const proto::JoinRendezvousRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ComeTo(const StepAttempt& attempt, int64_t generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerWhenAllAreHere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why there can be no communicator; empty: there can.
  std::string Hindrance() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const std::string& NameOf(size_t rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return group_->workers[rank].name;
  }

  const absl::Duration patience_;
  absl::Mutex mutex_;
  int64_t resets_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<WorkerGroup> group_ ABSL_GUARDED_BY(mutex_);
  NewId new_id_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  StepAttempt attempt_ ABSL_GUARDED_BY(mutex_) = {.step = -1};  // the latest called for
  int64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);  // of attempt_, by rank
  std::optional<proto::JoinRendezvousReply> answer_ ABSL_GUARDED_BY(mutex_);  // to attempt_
};

}  // namespace shoal::worker

// Where other workers come in: the worker's Stage service. (Peers of the whole job have a
// service of their own behind it, peer_service.h.) Calls of other stages of the group arrive on
// gRPC's threads at any time, also before the worker has a job, and are kept waiting (for a while:
// the caller tries again) until this worker is at the attempt that they are for.
//
// The worker says when that is: while it expects an attempt, calls for it get what `accept` says.
// The last word is the caller's: of several acceptances the one that it confirms is the connection.
//
// Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "core/rpc/stage_service.h"
#include "core/transport/negotiate.h"
#include "worker/peers/peer_service.h"
#include "worker/peers/stage_group.h"

namespace shoal::worker {

class StageService final : public rpc::StageService {
 public:
  // Of a call for an attempt that this worker has not come to.
  explicit StageService(absl::Duration patience = absl::Seconds(2)) : patience_(patience) {}

  // Unavailable: call again. FailedPrecondition, NotFound (another job) and PermissionDenied are
  // for good.
  absl::StatusOr<proto::ConnectStageReply> ConnectStage(
      const proto::ConnectStageRequest& request) override;
  absl::StatusOr<proto::JoinRendezvousReply> JoinRendezvous(
      const proto::JoinRendezvousRequest& request) override {
    return peers_.JoinRendezvous(request);
  }
  PeerService& peers() { return peers_; }

  // The worker has a job, in which it is a stage of this group. Once.
  void Open(const StageGroup& group);

  // Makes a connection from a lower stage's offers; a later one takes the place of an earlier.
  // Called on threads of ConnectStage, one at a time.
  using Accept = std::function<absl::StatusOr<transport::TakenOffer>(
      const proto::ConnectStageRequest& request)>;
  // From here on calls for this attempt are answered. FailedPrecondition unless it is later than
  // all before it.
  absl::Status Expect(const StepAttempt& attempt, Accept accept);
  // Aborted once a stage has called for a later attempt than the expected: that is over.
  absl::Status CheckExpected();
  // Waits until stage `from` has confirmed; the name of the transport. Errors as CheckExpected.
  absl::StatusOr<std::string> AwaitConfirmed(int from, absl::Time deadline);
  // No call to `accept` runs or follows.
  void EndExpect();

  // All that waits, and all that comes, ends with `why`.
  void Close(const absl::Status& why);

 private:
  struct Caller {
    std::string accepted;  // transports
    std::string confirmed;
  };
  absl::Status CheckCaller(const proto::ConnectStageRequest& request) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckLatest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AwaitAttempt(const StepAttempt& attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<proto::ConnectStageReply> TakeOffers(const proto::ConnectStageRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Duration patience_;
  PeerService peers_{patience_};
  absl::Mutex mutex_;
  std::optional<StageGroup> group_ ABSL_GUARDED_BY(mutex_);
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  StepAttempt attempt_ ABSL_GUARDED_BY(mutex_);  // expected now or last
  StepAttempt latest_ ABSL_GUARDED_BY(mutex_);   // that was called for
  Accept accept_ ABSL_GUARDED_BY(mutex_);        // empty: nothing is expected
  bool accepting_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int, Caller> callers_ ABSL_GUARDED_BY(mutex_);  // of attempt_, by stage
};

}  // namespace shoal::worker

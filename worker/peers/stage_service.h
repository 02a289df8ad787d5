// Answers other workers' calls. (Peers of the whole job have their own service behind it,
// peer_service.h.) Calls from other stages arrive on gRPC's threads at any time, also before the
// worker has a job, and wait for up to `patience` until this worker is at their attempt.
//
// While the worker expects an attempt, calls for it get what `accept` says. Of several acceptances,
// the caller confirms the one that becomes the connection.
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
  // `patience` of a call for an attempt that this worker has not come to.
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

  // Tells that the worker is a stage of this group. Call once a job.
  void Open(const StageGroup& group);

  // Makes a connection from a lower stage's offers; a later one replaces an earlier. Called on
  // threads of ConnectStage, exclusively.
  using Accept = std::function<absl::StatusOr<transport::TakenOffer>(
      const proto::ConnectStageRequest& request)>;
  // Answers calls for this attempt from now on. FailedPrecondition unless it is later than all
  // before it.
  absl::Status Expect(const StepAttempt& attempt, Accept accept);
  // Aborted once a stage has called for a later attempt than the expected one.
  absl::Status CheckExpected();
  // Waits until stage `from` has confirmed, and returns the transport's name. Errors as
  // CheckExpected.
  absl::StatusOr<std::string> AwaitConfirmed(int from, absl::Time deadline);
  // Returns when no call to `accept` runs; none follows.
  void EndExpect();

  // Ends waiting calls, and later ones, with `why`.
  void Close(const absl::Status& why);
  // Forgets the job, which is over: the next call of Open is for another, or another run of it.
  void Reset();

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

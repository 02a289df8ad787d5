// The worker's loop: does what WorkerCore says, joins a job and runs step after step as the
// coordinator hands them out. Ends when the job is over, or the last one, or on Stop.
//
// Call Run once, from the thread that is to compute; Stop from any.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/base/metrics.h"
#include "core/rpc/channel.h"
#include "proto/coordinator.pb.h"
#include "worker/job/worker_core.h"
#include "worker/job/worker_job.h"
#include "worker/peers/cancellation.h"

namespace shoal::worker {

class Trainer {
 public:
  // The channel is for this alone: Stop cuts off its long polls.
  Trainer(std::shared_ptr<rpc::Channel> coordinator, Metrics& metrics, Clock& clock = RealClock())
      : coordinator_(std::move(coordinator)), metrics_(metrics), clock_(clock) {}

  // OK when the job is over (where this worker `stays`, when there will be no other) or after
  // Stop(OK); otherwise Stop's status, or why this worker cannot continue.
  absl::Status Run(const WorkerJobOptions& options, bool stays = false);

  // Ends Run soon, also during a step or while waiting for peers. The first call counts.
  void Stop(const absl::Status& why);
  // Ends Run once the pack at hand is done, and hands the others back; a stage of a group, once its
  // group is done with the packs at hand. As Stop if that takes longer than the job grants
  // (cluster.grace_seconds), or at once without a job.
  void Drain(const absl::Status& why);
  // Whether it left a job that goes on, because of Drain.
  bool left_a_job() const;

 private:
  WorkerCore::What Next();
  // Until it has a job, or will have none.
  void Join(const WorkerJobOptions& options);
  void AskToJoin();
  // Until it has none any more.
  void TakePart(const WorkerJobOptions& options);
  // Makes its part, or what ties it to the servers. False where that failed, or the job goes on
  // with others meanwhile: a worker may wait for another of its group that is lost. `ends` is the
  // cancellation of `options`.
  bool Make(const WorkerJobOptions& options, Cancellation& ends,
            const std::function<absl::Status()>& make);
  void RunSteps(WorkerJob& job);
  // Joins anew, where no more than the partitions of servers has changed. False: it has another
  // part, or none, or waits for one: then what it holds is not kept meanwhile.
  bool StaysPart(const WorkerJobOptions& options, Cancellation& ends, WorkerJob& job);
  void SetJob(WorkerJob* job);
  void Ask();
  bool out_of_grace() const;

  const std::shared_ptr<rpc::Channel> coordinator_;
  WorkerMetrics metrics_;
  Clock& clock_;

  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<WorkerCore> core_;  // the thread of Run changes it, under the lock
  WorkerJob* job_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the current one
  absl::Duration grace_ ABSL_GUARDED_BY(mutex_);
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
  Cancellation cancellation_;  // by Stop
};

}  // namespace shoal::worker

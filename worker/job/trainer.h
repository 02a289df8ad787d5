// The worker's loop: join the job, then step after step run what the coordinator hands out and
// report. A step that fails is reported as failed, and the loop goes on with what comes next: the
// coordinator decides. It ends when the job is over or when it is told to stop.
//
// Run is called once, from the thread that is to compute; Stop from any.
#pragma once

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/base/metrics.h"
#include "core/rpc/channel.h"
#include "proto/coordinator.pb.h"
#include "worker/job/worker_job.h"
#include "worker/peers/cancellation.h"

namespace shoal::worker {

class Trainer {
 public:
  Trainer(std::shared_ptr<rpc::Channel> coordinator, Metrics& metrics, Clock& clock = RealClock())
      : coordinator_(std::move(coordinator)), metrics_(metrics), clock_(clock) {}

  // OK when the job is over or Stop(OK) was called; else what this worker cannot go on with, or the
  // status that Stop was given.
  absl::Status Run(const WorkerJobOptions& options);

  // Ends Run soon, also in the middle of a step or while peers are waited for. The first call
  // counts.
  void Stop(const absl::Status& why);

 private:
  absl::StatusOr<proto::JoinJobReply> Join(uint64_t incarnation);
  absl::Status RunJob(const WorkerJobOptions& options);
  absl::Status Loop(WorkerJob& job, const std::string& job_id, uint64_t incarnation);
  bool stopped() const;

  const std::shared_ptr<rpc::Channel> coordinator_;
  WorkerMetrics metrics_;
  Clock& clock_;

  mutable absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status why_ ABSL_GUARDED_BY(mutex_);
  Cancellation cancellation_;  // of the job, where it is stopped
};

}  // namespace shoal::worker

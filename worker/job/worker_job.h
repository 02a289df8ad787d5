// A worker's part in a job, made from the coordinator's answer to JoinJob: JobContext says what the
// job is, StepRunner runs its steps, Attachment ties it to the servers and to other workers.
#pragma once

#include <array>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/base/time_kind_clock.h"
#include "proto/coordinator.pb.h"
#include "worker/job/attachment.h"
#include "worker/job/job_context.h"
#include "worker/job/step_runner.h"

namespace shoal::worker {

class WorkerJob {
 public:
  static absl::StatusOr<std::unique_ptr<WorkerJob>> Create(const proto::JoinJobReply& join,
                                                           const WorkerJobOptions& options,
                                                           WorkerMetrics* metrics, Clock& clock);
  ~WorkerJob();

  // Runs the microbatches and blocks until all their pushes are acknowledged. The report has the
  // failure, if any: failed and message.
  proto::FinishedReport RunStep(const proto::StepWork& work);
  double grace_seconds() const { return context_->job.cluster.grace_seconds; }
  proto::NextStepRequest::Pushes pushes() const { return attachment_->pushes(); }
  // Ends steps after the pack at hand (StepRunner::Drain). Any thread.
  void Drain() { runner_->Drain(); }
  // Makes the current step fail at once, and every later one. Any thread.
  void Cancel(const absl::Status& why);

  // Whether a server is out of reach for now. Any thread, but not during Reattach.
  bool LacksServer() const { return attachment_->LacksServer(); }

  // Stages and peers wait for each other to join anew.
  bool knows_others() const { return join_.stages_size() > 1 || !join_.peers().empty(); }
  // Whether that is the same part, but for where partitions are, and nothing was cancelled: then
  // Reattach does, and what computes stays as it is.
  bool IsStill(const proto::JoinJobReply& join) const;
  // Ties it to the servers as `join` has them, between steps: by the ties that are there, where
  // they reach all (Attachment::Follow), else by others in place of them.
  absl::Status Reattach(const proto::JoinJobReply& join);

 private:
  WorkerJob(const proto::JoinJobReply& join, Clock& clock) : join_(join), time_kinds_(clock) {}
  absl::Status Attach(const proto::JoinJobReply& join);
  absl::Status RunMicrobatches(const proto::StepWork& work, proto::FinishedReport& report);
  void AddTimes(const std::array<double, kTimeKinds>& before, proto::FinishedReport& report) const;

  const proto::JoinJobReply join_;
  TimeKindClock time_kinds_;
  double peak_flops_ = 0;  // 0: unknown
  std::unique_ptr<const JobContext> context_;
  JobTransports transports_;
  std::unique_ptr<StepRunner> runner_;
  Attachment::Options attached_;
  mutable absl::Mutex mutex_;
  absl::Status cancelled_ ABSL_GUARDED_BY(mutex_);
  // The compute thread changes it, under the lock; null while another is made.
  std::unique_ptr<Attachment> attachment_;
};

}  // namespace shoal::worker

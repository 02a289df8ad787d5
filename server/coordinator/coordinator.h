// The coordinator service: CoordinatorCore behind a lock, with a thread each that ends leases,
// plans, and uses the checkpoint folder. All else runs on the threads of calls and answers.
// JoinJob, NextStep and WatchJob block here, for a bounded time.
//
// Thread-safe. Shut down the rpc::Server that calls it after Stop() and before destroying it.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/base/metrics.h"
#include "core/base/threads/steady_condition.h"
#include "core/rpc/coordinator_service.h"
#include "server/coordinator/background_thread.h"
#include "server/coordinator/coordinator_core.h"

namespace shoal::server {

// Reads everything a job needs; runs on the submitter's call and may take seconds. `workers`: how
// many there are, for a job that takes them all.
using JobLoader =
    std::function<absl::StatusOr<LoadedJob>(const proto::SubmitJobRequest&, int64_t workers)>;

struct CoordinatorOptions {
  std::string version;                       // members must have the same
  absl::Duration lease = absl::Seconds(10);  // until a job says its own
  bool stay = false;                         // for job after job, until Interrupt
  bool durable = false;                      // the state store outlives this
  bool encrypted = false;                    // calls, as by TLS
  // JobEnvironment::reached
  std::function<void(const char* point)> reached = [](const char*) {};
};

class Coordinator final : public rpc::CoordinatorService {
 public:
  // Reads the state store and goes on with what the last life left: its members, and its jobs,
  // where this coordinator stays or there are members; else it logs them. `clock` must run with
  // real time.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Create(const CoordinatorOptions& options,
                                                             JobLoader loader,
                                                             ServerClientFactory servers,
                                                             std::unique_ptr<StateStore> store,
                                                             const Clock& clock, Metrics& metrics);
  ~Coordinator() override;

  absl::StatusOr<proto::SubmitJobReply> SubmitJob(const proto::SubmitJobRequest& request) override;
  absl::StatusOr<proto::StopJobReply> StopJob(const proto::StopJobRequest& request) override;
  absl::StatusOr<proto::GetStatusReply> GetStatus(const proto::GetStatusRequest& request) override;
  absl::StatusOr<proto::ListJobsReply> ListJobs(const proto::ListJobsRequest& request) override;
  absl::StatusOr<proto::ReadLogReply> ReadLog(const proto::ReadLogRequest& request) override;
  absl::StatusOr<proto::ScaleReply> Scale(const proto::ScaleRequest& request) override;
  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request) override;
  absl::StatusOr<proto::RenewLeaseReply> RenewLease(
      const proto::RenewLeaseRequest& request) override;
  absl::StatusOr<rpc::HeldCall<proto::HoldConnectionReply>> HoldConnection(
      const proto::HoldConnectionRequest& request) override;
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest& request) override;
  absl::StatusOr<proto::JoinJobReply> JoinJob(const proto::JoinJobRequest& request) override;
  absl::StatusOr<proto::NextStepReply> NextStep(const proto::NextStepRequest& request) override;
  absl::StatusOr<proto::DrawMicrobatchReply> DrawMicrobatch(
      const proto::DrawMicrobatchRequest& request) override;
  absl::Status WatchJob(const proto::WatchJobRequest& request,
                        const rpc::JobEvents& watcher) override;

  // Blocks until Stop, or until jobs are over, members have left that do not stay, and watchers
  // have seen the end (or had some seconds to). With `stay`, only after Interrupt.
  void WaitUntilDone();
  // Why it ended by itself: servers obey a later life of it. OK: it did not.
  absl::Status superseded() const;
  // Ends jobs with a checkpoint, and then the coordinator.
  void Interrupt(const std::string& reason);
  // Ends all waits, threads and calls to servers. Idempotent.
  void Stop();

 private:
  Coordinator(const CoordinatorOptions& options, JobLoader loader, ServerClientFactory servers,
              std::unique_ptr<StateStore> store, const SavedState& saved, const Clock& clock,
              Metrics& metrics);
  absl::Status TakeUp(SavedJob saved, bool goes_on);
  absl::Status Resume(const SavedJob& saved);
  absl::Status Remember(const SavedJob& saved);
  JobEnvironment Environment(ServerClientFactory servers, const CoordinatorOptions& options);
  void Post(const std::function<void()>& work);
  // No more work, answers or events.
  void Close() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Call before releasing the lock: wakes those for whom something has changed.
  void Notice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeLines() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunTimer();
  // Waits for a job if none is named and there is none yet.
  absl::StatusOr<std::shared_ptr<EventLog>> AwaitEvents(const std::string& job_id,
                                                        const rpc::JobEvents& watcher)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static absl::Status Follow(EventLog& events, int64_t seen, const rpc::JobEvents& watcher);
  bool Done() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  template <typename Request, typename Reply>
  absl::StatusOr<Reply> Ask(const Request& request,
                            absl::StatusOr<Reply> (CoordinatorCore::*method)(const Request&));
  template <typename Request, typename Reply>
  absl::StatusOr<std::optional<Reply>> WaitFor(
      Request request,
      absl::StatusOr<std::optional<Reply>> (CoordinatorCore::*method)(const Request&));

  const JobLoader loader_;
  const bool encrypted_;
  const int64_t term_;
  const Clock& clock_;
  std::unique_ptr<StateStore> store_;
  CoordinatorMetrics metrics_;
  BackgroundThread plan_thread_;
  BackgroundThread disk_thread_;

  mutable absl::Mutex mutex_;
  SteadyCondition changed_;  // workers wait for this
  SteadyCondition timer_;    // the next deadline moved closer
  SteadyCondition done_;     // Done() may have become true
  CoordinatorCore core_ ABSL_GUARDED_BY(mutex_);
  int64_t noticed_changes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time timer_target_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status superseded_ ABSL_GUARDED_BY(mutex_);
  int watchers_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread timer_thread_;
};

}  // namespace shoal::server

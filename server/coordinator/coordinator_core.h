// All that a coordinator decides, without waiting for anything: members and their leases, the one
// job, its events. The methods mirror the service's; those that would have to wait answer nullopt
// instead ("nothing yet").
//
// Not thread-safe: Coordinator calls it under its lock, the simulation in tests from its loop.
// JobRun explains the executors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/job/job_run.h"
#include "server/coordinator/members/membership.h"

namespace shoal::server {

class CoordinatorCore {
 public:
  CoordinatorCore(const MembershipOptions& members, JobEnvironment environment);

  // Starts as soon as enough members are there. `newest` is what the job's CheckpointFiles say.
  // FailedPrecondition when there is a job already, or when the checkpoint folder holds another
  // run's checkpoints and `resume` was not asked for.
  absl::StatusOr<proto::SubmitJobReply> Submit(LoadedJob job,
                                               std::optional<CompleteCheckpoint> newest,
                                               bool resume);
  // FailedPrecondition without a job.
  absl::Status Stop(const std::string& reason);
  proto::GetStatusReply Status() const;

  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request);
  absl::StatusOr<proto::RenewLeaseReply> Renew(const proto::RenewLeaseRequest& request);
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest& request);
  absl::StatusOr<std::optional<proto::JoinJobReply>> Join(const proto::JoinJobRequest& request);
  absl::StatusOr<std::optional<proto::NextStepReply>> Next(const proto::NextStepRequest& request);

  // Never waits. FailedPrecondition without a job.
  absl::StatusOr<proto::DrawMicrobatchReply> Draw(const proto::DrawMicrobatchRequest& request);

  // Ends leases and what else has a deadline: call at NextTick() or later.
  void Tick();
  absl::Time NextTick() const;

  bool job_over() const { return run_ != nullptr && run_->over(); }
  bool has_job() const { return run_ != nullptr; }
  bool has_members() const { return members_.size() > 0; }
  int64_t workers() const {
    return static_cast<int64_t>(members_.members(proto::ROLE_WORKER).size());
  }
  // Moves whenever Join or Next may answer differently than before.
  int64_t changes() const { return run_ == nullptr ? 0 : run_->changes() + 1; }
  // Null before Submit.
  const JobRun* run() const { return run_.get(); }

 private:
  absl::Status Touch(uint64_t incarnation);
  void StartIfComplete();
  void CountMembers();

  Membership members_;
  JobEnvironment environment_;
  int64_t wanted_servers_ = 0;
  int64_t wanted_workers_ = 0;
  std::unique_ptr<JobRun> run_;
};

}  // namespace shoal::server

// Decides all for a coordinator without waiting: members and their leases, and jobs by id. Methods
// mirror the service's; those that would wait return nullopt ("nothing yet"). A message for a job
// that is not here is NotFound, by name.
//
// One job at a time: Submit refuses a second. Nothing else relies on it.
//
// Not thread-safe: Coordinator calls it under its lock, tests from a simulation's loop. JobRun
// explains the executors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/random.h"
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
  // In these three an empty id means the job submitted last. FailedPrecondition without a job.
  absl::Status Stop(const std::string& job_id, const std::string& reason);
  absl::StatusOr<std::shared_ptr<EventLog>> Events(const std::string& job_id) const;
  absl::StatusOr<proto::GetStatusReply> Status(const std::string& job_id) const;  // OK without one

  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request);
  absl::StatusOr<proto::RenewLeaseReply> Renew(const proto::RenewLeaseRequest& request);
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest& request);
  absl::StatusOr<std::optional<proto::JoinJobReply>> Join(const proto::JoinJobRequest& request);
  absl::StatusOr<std::optional<proto::NextStepReply>> Next(const proto::NextStepRequest& request);
  // Never waits.
  absl::StatusOr<proto::DrawMicrobatchReply> Draw(const proto::DrawMicrobatchRequest& request);

  void StopAll(const std::string& reason);
  // Ends leases and all else with a deadline: call at NextTick() or later.
  void Tick();
  absl::Time NextTick() const;

  // Whether there was a job and none runs now.
  bool jobs_over() const;
  bool has_job() const { return !jobs_.empty(); }
  bool has_members() const { return members_.size() > 0; }
  int64_t workers() const {
    return static_cast<int64_t>(members_.members(proto::ROLE_WORKER).size());
  }
  // Moves whenever Join or Next may answer differently than before.
  int64_t changes() const;

  // Tells all that wait for events of any job that there are no more.
  void CloseEvents();
  // Lets the owner end calls in flight without its lock. Do not call the core afterwards.
  std::vector<std::shared_ptr<ServerClient>> ReleaseServers();
  // Of all members, by the time that this process could not hear them.
  void ExtendLeases(absl::Duration by) { members_.ExtendLeases(by); }

 private:
  std::string NewJobId();
  void TakeMembers(LoadedJob& job) const;
  absl::StatusOr<JobRun*> Find(const std::string& job_id) const;
  absl::StatusOr<JobRun*> FindOrNewest(const std::string& job_id) const;
  // That goes on and has this member; null: none.
  JobRun* JobOf(uint64_t incarnation) const;
  std::vector<Member> FreeMembers(proto::Role role) const;
  absl::Status Touch(uint64_t incarnation);
  void OfferMembers();
  void OnLost(const Member& member, const std::string& why);
  void CountMembers();

  Membership members_;
  JobEnvironment environment_;
  Random job_ids_;
  std::map<std::string, std::unique_ptr<JobRun>> jobs_;  // by id
  std::string newest_;                                   // of them
};

}  // namespace shoal::server

// Decides all for a coordinator without waiting: members and their leases, and jobs by id. Methods
// mirror the service's; those that would wait return nullopt ("nothing yet"). A message for a job
// that is not here is NotFound, by name.
//
// Jobs run one after the other, in the order in which they came. Where members stay, those that
// wait are queued, and the last that are over are remembered; else there is one job, and members
// end with it.
//
// Not thread-safe: Coordinator calls it under its lock, tests from a simulation's loop. JobRun
// explains the executors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/base/random.h"
#include "proto/coordinator.pb.h"
#include "server/coordinator/job/job_run.h"
#include "server/coordinator/members/membership.h"
#include "server/coordinator/record/job_logs.h"

namespace shoal::server {

// Where the last thing that an earlier life did for a job was to tell its end: sets the outcome,
// and returns true.
bool TakeOutcomeOfEvents(SavedJob& saved);

// A run begins once all before it are over: one that is not the newest is, though its end could not
// be recorded. Where it has no commit, its job waits for its turn again.
void ForgetRunsThatAreOver(SavedState& saved);

class CoordinatorCore {
 public:
  static constexpr int64_t kMaxWaiting = 100;  // jobs
  static constexpr int64_t kRemembered = 8;    // of those that are over
  static constexpr int64_t kMaxEnding = 16;    // whose files are still in use

  CoordinatorCore(const MembershipOptions& members, JobEnvironment environment);

  // Members of earlier lives are members still. Before the jobs of those lives, after which comes
  // Begin: no job starts before all are here.
  void Restore(const std::vector<proto::SavedMember>& members);
  void Begin();

  // Starts as soon as it is the first and enough members are there. `newest` is what the job's
  // CheckpointFiles say. FailedPrecondition where members do not stay and there is a job already,
  // when the checkpoint folder holds another run's checkpoints and `resume` was not asked for, when
  // a job that goes on or waits has that folder, and when too few servers are there.
  // ResourceExhausted when the queue is full.
  absl::StatusOr<proto::SubmitJobReply> Submit(LoadedJob job,
                                               std::optional<CompleteCheckpoint> newest,
                                               bool resume);
  // Goes on with a job of an earlier life, loaded anew: where its run is, if one began.
  // FailedPrecondition where none did and the checkpoint folder holds another run's.
  absl::Status Resume(LoadedJob job, std::optional<CompleteCheckpoint> newest,
                      const SavedJob& saved);
  // Remembers one that was over in an earlier life, and lets its servers go.
  void Remember(LoadedJob job, const SavedJob& saved);
  // In these four an empty id means the job submitted last. FailedPrecondition without a job.
  absl::Status Stop(const std::string& job_id, const std::string& reason);
  absl::StatusOr<proto::ScaleReply> Scale(const proto::ScaleRequest& request);
  absl::StatusOr<std::shared_ptr<EventLog>> Events(const std::string& job_id) const;
  absl::StatusOr<proto::GetStatusReply> Status(const std::string& job_id) const;  // OK without one
  proto::ListJobsReply List() const;
  absl::StatusOr<proto::ReadLogReply> ReadLog(const proto::ReadLogRequest& request) const;

  absl::StatusOr<proto::RegisterReply> Register(const proto::RegisterRequest& request);
  // The address of the member that a request would take over from; empty: there is none.
  std::string AddressToTakeOver(const proto::RegisterRequest& request) const;
  // That member is gone, as its address shows.
  void TakeOver(const proto::RegisterRequest& request);
  absl::StatusOr<proto::RenewLeaseReply> Renew(const proto::RenewLeaseRequest& request);
  // A member holds a connection from now on, or holds it no longer.
  absl::Status OnConnected(uint64_t incarnation) { return members_.OnConnected(incarnation); }
  void OnDisconnected(uint64_t incarnation);
  absl::StatusOr<proto::LeaveReply> Leave(const proto::LeaveRequest& request);
  absl::StatusOr<std::optional<proto::JoinJobReply>> Join(const proto::JoinJobRequest& request);
  absl::StatusOr<std::optional<proto::NextStepReply>> Next(const proto::NextStepRequest& request);
  // Never waits.
  absl::StatusOr<proto::DrawMicrobatchReply> Draw(const proto::DrawMicrobatchRequest& request);

  // What the coordinator itself has logged.
  void AddLog(const proto::NewLines& lines) {
    logs_.Add("coordinator", lines, environment_.clock.Now());
  }

  // Stops all jobs. Takes no others from now on, and members are to leave.
  void End(const std::string& reason);
  // Ends leases and all else with a deadline: call at NextTick() or later.
  void Tick();
  absl::Time NextTick() const;
  // For the metric of the oldest lease: call a few times a second.
  void MeasureLeases();

  // Whether nothing is left to do and nothing will come.
  bool ended() const;
  // Whether there are members that do not stay.
  bool members_to_leave() const;
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
  absl::Status CheckRoom(const LoadedJob& job) const;
  void ForgetOldJobs();
  void Offer(JobRun& run);
  void StartAgain(std::unique_ptr<JobRun>& run);
  void Prepare(const plan::Job& job);
  absl::Status Enqueue(LoadedJob job, std::optional<CompleteCheckpoint> newest,
                       const SavedJob& saved);
  JobRun& Add(LoadedJob job, std::optional<CompleteCheckpoint> newest, const SavedJob& saved);
  void TellWhoIsGone(JobRun& run, const proto::SavedRun& saved);
  absl::StatusOr<JobRun*> Find(const std::string& job_id) const;
  absl::StatusOr<JobRun*> FindOrNewest(const std::string& job_id) const;
  // That goes on and has this member; null: none.
  JobRun* JobOf(uint64_t incarnation) const;
  std::vector<Member> FreeMembers(proto::Role role) const;
  bool IsDoneWith(uint64_t incarnation) const;
  absl::Status Touch(uint64_t incarnation);
  absl::Status CheckMember(uint64_t incarnation);
  // From the record too.
  std::optional<Member> Remove(uint64_t incarnation);
  void Unrecord(const Member& member);
  static std::string WhyLost(const Member& expired);
  bool KeepsFromLeaving(const proto::LeaveRequest& request);
  bool IsHeld(uint64_t incarnation) const;
  void TellLeaving(JobRun& run, const Member& member, const std::string& why);
  absl::StatusOr<proto::ScaleReply> Drain(const proto::ScaleRequest& request);
  absl::Status SetDrained(uint64_t incarnation, bool drained);
  void KeepDrained(JobRun& run);
  void OfferMembers();
  void RemoveUnreachable();
  void OnLost(const Member& member, const std::string& why);
  void CountMembers();
  void AddLog(const Member& member, const proto::NewLines& lines);

  Membership members_;
  JobEnvironment environment_;
  Random job_ids_;
  const uint64_t cluster_;  // names the durable state
  int64_t next_run_;
  absl::Duration patience_;                    // of members, for this coordinator's next life
  std::vector<std::unique_ptr<JobRun>> jobs_;  // as submitted
  int64_t remembered_ = 0;                     // jobs that are over
  int64_t forgotten_changes_ = 0;              // of jobs that were here
  JobLogs logs_;
  // Workers of a run that was started again, until they ask for another: they may be in its step
  // still.
  std::set<uint64_t> in_earlier_run_;
  bool taking_up_ = false;  // from Restore to Begin
  bool ending_ = false;
  bool superseded_ = false;
};

}  // namespace shoal::server

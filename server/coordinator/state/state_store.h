// The coordinator's durable state: which of its lives this is, its members, the jobs that were
// submitted, and each one's run, last commit, checkpoints and newest events. A restarted
// coordinator reads this, gives no incarnation twice, and goes on with jobs that are not over,
// where their servers and workers still run in the middle of a step, or says what became of them.
//
// Called under the coordinator's lock. Each call is one transaction. Those of every step
// (RecordCommit, SaveEvent) do not wait for the disk: the newest of them may go with the machine's
// power. In etcd they are queued, so that the newest may go with the process
// (docs/decisions/0019-coordinators-stand-by-over-etcd.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"
#include "proto/state.pb.h"

namespace shoal::server {

// Everything needed to repeat a commit at a server that missed it, and to tell of its step.
struct CommitRecord {
  int64_t step = 0;
  int64_t attempt = 0;
  double learning_rate = 0;
  double clip_coefficient = 0;
  int64_t generation = 0;
  proto::StepEvent event;  // as far as it was known then
};

struct CheckpointRecord {
  int64_t step = 0;
  std::string path;

  bool operator==(const CheckpointRecord&) const = default;
};

struct SavedJob {
  std::string id;
  std::string request;                 // proto SubmitJobRequest, resolved
  std::string outcome;                 // empty: runs or waits
  std::string stop;                    // why it is to stop; empty: it is not
  std::optional<proto::SavedRun> run;  // the newest
  std::optional<CommitRecord> last_commit;
  std::vector<CheckpointRecord> checkpoints;  // ascending steps
  std::vector<proto::JobEvent> events;        // the newest, ascending numbers
};

struct SavedState {
  uint64_t cluster = 0;  // random: names this state over all lives
  int64_t term = 0;      // of this life
  int64_t incarnations = 0;
  std::vector<proto::SavedMember> members;
  std::vector<SavedJob> jobs;  // as submitted
};

class StateStore {
 public:
  // Of a job's.
  static constexpr int64_t kMaxEvents = 1024;

  virtual ~StateStore() = default;
  // Another life begins, with a term higher than all before. First, and once.
  virtual absl::Status BeginTerm() = 0;
  virtual absl::StatusOr<SavedState> Load() = 0;
  // `issued`: incarnations given so far.
  virtual absl::Status SaveMember(const proto::SavedMember& member, int64_t issued) = 0;
  virtual absl::Status RemoveMember(uint64_t incarnation) = 0;
  // Forgets jobs that have ended. Fails if a job has that id.
  virtual absl::Status BeginJob(const std::string& id, const std::string& request) = 0;
  // Replaces the job's last run. Where it `begins`, the last one's commit is forgotten. Of a job
  // that is forgotten: nothing to do.
  virtual absl::Status SaveRun(const std::string& id, const proto::SavedRun& run, bool begins) = 0;
  // Replaces the job's last record.
  virtual absl::Status RecordCommit(const std::string& id, const CommitRecord& commit) = 0;
  virtual absl::Status RecordCheckpoint(const std::string& id,
                                        const CheckpointRecord& checkpoint) = 0;
  // Adds one with a higher number than those before; the oldest beyond kMaxEvents numbers go.
  virtual absl::Status SaveEvent(const std::string& id, const proto::JobEvent& event) = 0;
  // The job is to stop, whatever life hears of it.
  virtual absl::Status StopJob(const std::string& id, const std::string& reason) = 0;
  virtual absl::Status EndJob(const std::string& id, const std::string& outcome) = 0;
};

// In memory, lost on destruction: for tests, and for runs without a state file.
// `cluster` names it; 0: by a random number.
std::unique_ptr<StateStore> MakeMemoryStateStore(uint64_t cluster = 0);

// One SQLite file (created if missing). FailedPrecondition if another coordinator has it open, or
// where a newer version of this program wrote it.
absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStateStore(const std::string& path);

}  // namespace shoal::server

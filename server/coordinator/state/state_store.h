// What of a coordinator outlives it: how many incarnations it has given, and by job its last commit
// and checkpoints. A coordinator that starts again reads this, gives no incarnation twice, and says
// what the last commit of each job was.
//
// Calls are made under the coordinator's lock, one per step: they must take well under a
// millisecond.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::server {

// All that is needed to repeat a commit at a server that has not heard of it.
struct CommitRecord {
  int64_t step = 0;
  int64_t attempt = 0;
  double learning_rate = 0;
  double clip_coefficient = 0;
  int64_t generation = 0;

  bool operator==(const CommitRecord&) const = default;
};

struct CheckpointRecord {
  int64_t step = 0;
  std::string path;

  bool operator==(const CheckpointRecord&) const = default;
};

struct SavedJob {
  std::string id;
  std::string job_yaml;
  std::string token_file;
  std::string outcome;  // empty: the job was still running
  std::optional<CommitRecord> last_commit;
  std::vector<CheckpointRecord> checkpoints;  // ascending steps
};

struct SavedState {
  int64_t incarnations = 0;
  std::vector<SavedJob> jobs;  // as they began
};

class StateStore {
 public:
  virtual ~StateStore() = default;
  virtual absl::StatusOr<SavedState> Load() = 0;
  virtual absl::Status SaveIncarnations(int64_t issued) = 0;
  // Forgets the jobs that have ended. Fails for an id that a job has.
  virtual absl::Status BeginJob(const std::string& id, const std::string& job_yaml,
                                const std::string& token_file) = 0;
  // Replaces the record of the job's commit before.
  virtual absl::Status RecordCommit(const std::string& id, const CommitRecord& commit) = 0;
  virtual absl::Status RecordCheckpoint(const std::string& id,
                                        const CheckpointRecord& checkpoint) = 0;
  virtual absl::Status EndJob(const std::string& id, const std::string& outcome) = 0;
};

// Forgets all when it goes: for tests, and for runs that ask for no state file.
std::unique_ptr<StateStore> MakeMemoryStateStore();

// One SQLite file (created where absent). FailedPrecondition when another coordinator has it open.
absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStateStore(const std::string& path);

}  // namespace shoal::server

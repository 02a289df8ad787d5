// The coordinator's durable state: which of its lives this is, how many incarnations it has given,
// the jobs that were submitted, and each one's last commit and checkpoints. A restarted coordinator
// reads this, gives no incarnation twice, and goes on with jobs that are not over, or says what
// became of them.
//
// Called under the coordinator's lock, once per step: must take well under a millisecond.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal::server {

// Everything needed to repeat a commit at a server that missed it.
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
  std::string request;  // proto SubmitJobRequest, resolved
  std::string outcome;  // empty: runs or waits
  std::optional<CommitRecord> last_commit;
  std::vector<CheckpointRecord> checkpoints;  // ascending steps
};

struct SavedState {
  int64_t incarnations = 0;
  std::vector<SavedJob> jobs;  // as submitted
};

class StateStore {
 public:
  virtual ~StateStore() = default;
  virtual absl::StatusOr<SavedState> Load() = 0;
  // Another life begins; returns its term, higher than all before.
  virtual absl::StatusOr<int64_t> BeginTerm() = 0;
  virtual absl::Status SaveIncarnations(int64_t issued) = 0;
  // Forgets jobs that have ended. Fails if a job has that id.
  virtual absl::Status BeginJob(const std::string& id, const std::string& request) = 0;
  // Replaces the job's last record.
  virtual absl::Status RecordCommit(const std::string& id, const CommitRecord& commit) = 0;
  virtual absl::Status RecordCheckpoint(const std::string& id,
                                        const CheckpointRecord& checkpoint) = 0;
  virtual absl::Status EndJob(const std::string& id, const std::string& outcome) = 0;
};

// In memory, lost on destruction: for tests, and for runs without a state file.
std::unique_ptr<StateStore> MakeMemoryStateStore();

// One SQLite file (created if missing). FailedPrecondition if another coordinator has it open, or
// where a newer version of this program wrote it.
absl::StatusOr<std::unique_ptr<StateStore>> OpenSqliteStateStore(const std::string& path);

}  // namespace shoal::server

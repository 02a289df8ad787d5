#include <algorithm>

#include "core/base/status.h"
#include "server/coordinator/state/state_store.h"

namespace shoal::server {
namespace {

class MemoryStateStore final : public StateStore {
 public:
  absl::StatusOr<SavedState> Load() override { return state_; }
  absl::StatusOr<int64_t> BeginTerm() override { return ++term_; }
  absl::Status SaveIncarnations(int64_t issued) override {
    state_.incarnations = issued;
    return absl::OkStatus();
  }
  absl::Status BeginJob(const std::string& id, const std::string& request) override {
    if (Find(id).ok()) {
      return AlreadyExists("{} has begun", id);
    }
    std::erase_if(state_.jobs, [](const SavedJob& job) { return !job.outcome.empty(); });
    state_.jobs.push_back({.id = id, .request = request});
    return absl::OkStatus();
  }
  absl::Status RecordCommit(const std::string& id, const CommitRecord& commit) override {
    SHOAL_ASSIGN_OR_RETURN(SavedJob * job, Find(id));
    job->last_commit = commit;
    return absl::OkStatus();
  }
  absl::Status RecordCheckpoint(const std::string& id,
                                const CheckpointRecord& checkpoint) override {
    SHOAL_ASSIGN_OR_RETURN(SavedJob * job, Find(id));
    job->checkpoints.push_back(checkpoint);
    return absl::OkStatus();
  }
  absl::Status EndJob(const std::string& id, const std::string& outcome) override {
    SHOAL_ASSIGN_OR_RETURN(SavedJob * job, Find(id));
    job->outcome = outcome;
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<SavedJob*> Find(const std::string& id) {
    const auto found = std::ranges::find(state_.jobs, id, &SavedJob::id);
    if (found == state_.jobs.end()) {
      return NotFound("there is no record of {}", id);
    }
    return &*found;
  }

  SavedState state_;
  int64_t term_ = 0;
};

}  // namespace

std::unique_ptr<StateStore> MakeMemoryStateStore() { return std::make_unique<MemoryStateStore>(); }

}  // namespace shoal::server

#include "server/coordinator/state/state_store.h"

namespace shoal::server {
namespace {

class MemoryStateStore final : public StateStore {
 public:
  absl::StatusOr<SavedState> Load() override { return state_; }
  absl::Status SaveIncarnations(int64_t issued) override {
    state_.incarnations = issued;
    return absl::OkStatus();
  }
  absl::Status BeginJob(const std::string& job_yaml, const std::string& token_file) override {
    state_ = {.incarnations = state_.incarnations, .job_yaml = job_yaml, .token_file = token_file};
    return absl::OkStatus();
  }
  absl::Status RecordCommit(const CommitRecord& commit) override {
    state_.last_commit = commit;
    return absl::OkStatus();
  }
  absl::Status RecordCheckpoint(const CheckpointRecord& checkpoint) override {
    state_.checkpoints.push_back(checkpoint);
    return absl::OkStatus();
  }
  absl::Status EndJob(const std::string& outcome) override {
    state_.outcome = outcome;
    return absl::OkStatus();
  }

 private:
  SavedState state_;
};

}  // namespace

std::unique_ptr<StateStore> MakeMemoryStateStore() { return std::make_unique<MemoryStateStore>(); }

}  // namespace shoal::server

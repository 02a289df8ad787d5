#include <algorithm>
#include <map>
#include <string>

#include "core/base/random.h"
#include "core/base/status.h"
#include "server/coordinator/state/state_store.h"

namespace shoal::server {
namespace {

class MemoryStateStore final : public StateStore {
 public:
  explicit MemoryStateStore(uint64_t cluster) {
    state_.cluster = cluster != 0 ? cluster : std::stoull(SecureToken().substr(0, 16), nullptr, 16);
  }

  absl::Status BeginTerm() override {
    ++state_.term;
    return absl::OkStatus();
  }
  absl::StatusOr<SavedState> Load() override {
    SavedState state = state_;
    for (SavedJob& job : state.jobs) {
      if (const auto run = runs_.find(job.id); run != runs_.end()) {
        job.run.emplace().ParseFromString(run->second);
      }
    }
    return state;
  }
  absl::Status SaveMember(const proto::SavedMember& member, int64_t issued) override {
    state_.incarnations = issued;
    SHOAL_RETURN_IF_ERROR(RemoveMember(member.incarnation()));
    state_.members.push_back(member);
    return absl::OkStatus();
  }
  absl::Status RemoveMember(uint64_t incarnation) override {
    std::erase_if(state_.members, [&](const proto::SavedMember& member) {
      return member.incarnation() == incarnation;
    });
    return absl::OkStatus();
  }
  absl::Status BeginJob(const std::string& id, const std::string& request) override {
    if (Find(id).ok()) {
      return AlreadyExists("{} has begun", id);
    }
    std::erase_if(state_.jobs, [](const SavedJob& job) { return !job.outcome.empty(); });
    std::erase_if(runs_, [this](const auto& run) { return !Find(run.first).ok(); });
    state_.jobs.push_back({.id = id, .request = request});
    return absl::OkStatus();
  }
  absl::Status SaveRun(const std::string& id, const proto::SavedRun& run, bool begins) override {
    if (const absl::StatusOr<SavedJob*> job = Find(id); job.ok()) {
      runs_[id] = run.SerializeAsString();
      if (begins) {
        (*job)->last_commit.reset();
      }
    }
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
  absl::Status SaveEvent(const std::string& id, const proto::JobEvent& event) override {
    SHOAL_ASSIGN_OR_RETURN(SavedJob * job, Find(id));
    job->events.push_back(event);
    std::erase_if(job->events, [&](const proto::JobEvent& old) {
      return old.number() <= event.number() - kMaxEvents;
    });
    return absl::OkStatus();
  }
  absl::Status StopJob(const std::string& id, const std::string& reason) override {
    SHOAL_ASSIGN_OR_RETURN(SavedJob * job, Find(id));
    job->stop = reason;
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
  std::map<std::string, std::string> runs_;  // by job, as other stores have them
};

}  // namespace

std::unique_ptr<StateStore> MakeMemoryStateStore(uint64_t cluster) {
  return std::make_unique<MemoryStateStore>(cluster);
}

}  // namespace shoal::server

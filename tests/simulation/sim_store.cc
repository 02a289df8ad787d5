#include "tests/simulation/sim_store.h"

#include "core/base/status.h"

namespace shoal::simulation {

absl::Status SimStore::WriteLater(Transaction transaction) {
  SHOAL_RETURN_IF_ERROR(refuse());
  SHOAL_RETURN_IF_ERROR(transaction(*contents_));
  transactions_.push_back(std::move(transaction));
  return absl::OkStatus();
}

absl::Status SimStore::Write(Transaction transaction) {
  if (succeeded_) {
    return Aborted("another coordinator leads");
  }
  return WriteLater(std::move(transaction));
}

int64_t SimStore::LosePower(Random& random) {
  const auto left =
      static_cast<size_t>(random.Between(static_cast<int64_t>(synced_), std::ssize(transactions_)));
  const auto lost = static_cast<int64_t>(transactions_.size() - left);
  transactions_.resize(left);
  Replay();
  return lost;
}

void SimStore::Replay() {
  contents_ = server::MakeMemoryStateStore(kCluster);
  for (const Transaction& transaction : transactions_) {
    static_cast<void>(transaction(*contents_));
  }
  Sync();
}

std::unique_ptr<SimStore> SimStore::Succeed() {
  succeeded_ = true;
  auto next = std::make_unique<SimStore>();
  next->transactions_ = transactions_;
  next->Replay();
  return next;
}

absl::Status SimStore::BeginTerm() {
  transactions_.push_back([](auto& store) { return store.BeginTerm(); });
  SHOAL_RETURN_IF_ERROR(contents_->BeginTerm());
  Sync();
  return absl::OkStatus();
}

absl::Status SimStore::WriteSynced(Transaction transaction) {
  SHOAL_RETURN_IF_ERROR(Write(std::move(transaction)));
  Sync();
  return absl::OkStatus();
}

absl::Status SimStore::SaveMember(const proto::SavedMember& member, int64_t issued) {
  return WriteSynced([member, issued](auto& store) { return store.SaveMember(member, issued); });
}

absl::Status SimStore::RemoveMember(uint64_t incarnation) {
  return Write([incarnation](auto& store) { return store.RemoveMember(incarnation); });
}

absl::Status SimStore::SaveRun(const std::string& id, const proto::SavedRun& run, bool begins) {
  SHOAL_RETURN_IF_ERROR(
      WriteSynced([id, run, begins](auto& store) { return store.SaveRun(id, run, begins); }));
  if (on_run) {
    on_run(id, run);
  }
  return absl::OkStatus();
}

absl::Status SimStore::SaveEvent(const std::string& id, const proto::JobEvent& event) {
  return WriteLater([id, event](auto& store) { return store.SaveEvent(id, event); });
}

absl::Status SimStore::StopJob(const std::string& id, const std::string& reason) {
  return WriteSynced([id, reason](auto& store) { return store.StopJob(id, reason); });
}

absl::Status SimStore::BeginJob(const std::string& id, const std::string& request) {
  return WriteSynced([id, request](auto& store) { return store.BeginJob(id, request); });
}

absl::Status SimStore::RecordCommit(const std::string& id, const server::CommitRecord& commit) {
  SHOAL_RETURN_IF_ERROR(
      WriteLater([id, commit](auto& store) { return store.RecordCommit(id, commit); }));
  if (on_commit) {
    on_commit(id, commit);
  }
  return absl::OkStatus();
}

absl::Status SimStore::RecordCheckpoint(const std::string& id,
                                        const server::CheckpointRecord& checkpoint) {
  return Write([id, checkpoint](auto& store) { return store.RecordCheckpoint(id, checkpoint); });
}

absl::Status SimStore::EndJob(const std::string& id, const std::string& outcome) {
  return WriteSynced([id, outcome](auto& store) { return store.EndJob(id, outcome); });
}

}  // namespace shoal::simulation

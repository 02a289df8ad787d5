#include "tests/simulation/sim_store.h"

#include "core/base/status.h"

namespace shoal::simulation {

absl::Status SimStore::Write(Transaction transaction) {
  SHOAL_RETURN_IF_ERROR(refuse());
  SHOAL_RETURN_IF_ERROR(transaction(*contents_));
  transactions_.push_back(std::move(transaction));
  return absl::OkStatus();
}

int64_t SimStore::LosePower(Random& random) {
  const auto left =
      static_cast<size_t>(random.Between(static_cast<int64_t>(synced_), std::ssize(transactions_)));
  const auto lost = static_cast<int64_t>(transactions_.size() - left);
  transactions_.resize(left);
  contents_ = server::MakeMemoryStateStore();
  for (const Transaction& transaction : transactions_) {
    static_cast<void>(transaction(*contents_));
  }
  Sync();
  return lost;
}

absl::StatusOr<int64_t> SimStore::BeginTerm() {
  int64_t term = 0;
  transactions_.push_back([](auto& store) { return store.BeginTerm().status(); });
  SHOAL_ASSIGN_OR_RETURN(term, contents_->BeginTerm());
  Sync();
  return term;
}

absl::Status SimStore::SaveIncarnations(int64_t issued) {
  SHOAL_RETURN_IF_ERROR(Write([issued](auto& store) { return store.SaveIncarnations(issued); }));
  Sync();
  return absl::OkStatus();
}

absl::Status SimStore::BeginJob(const std::string& id, const std::string& request) {
  return Write([id, request](auto& store) { return store.BeginJob(id, request); });
}

absl::Status SimStore::RecordCommit(const std::string& id, const server::CommitRecord& commit) {
  SHOAL_RETURN_IF_ERROR(
      Write([id, commit](auto& store) { return store.RecordCommit(id, commit); }));
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
  return Write([id, outcome](auto& store) { return store.EndJob(id, outcome); });
}

}  // namespace shoal::simulation

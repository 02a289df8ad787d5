// The coordinator's state file on a simulated disk, as SQLite has it: whatever was written outlasts
// the process, and a loss of power takes the newest transactions since the last sync, whole ones (a
// torn one counts as not written). What is written in every step is not synced.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "server/coordinator/state/state_store.h"

namespace shoal::simulation {

class SimStore final : public server::StateStore {
 public:
  absl::StatusOr<server::SavedState> Load() override { return contents_->Load(); }
  absl::Status BeginTerm() override;
  absl::Status SaveMember(const proto::SavedMember& member, int64_t issued) override;
  absl::Status RemoveMember(uint64_t incarnation) override;
  absl::Status BeginJob(const std::string& id, const std::string& request) override;
  absl::Status SaveRun(const std::string& id, const proto::SavedRun& run, bool begins) override;
  absl::Status RecordCommit(const std::string& id, const server::CommitRecord& commit) override;
  absl::Status RecordCheckpoint(const std::string& id,
                                const server::CheckpointRecord& checkpoint) override;
  absl::Status SaveEvent(const std::string& id, const proto::JobEvent& event) override;
  absl::Status StopJob(const std::string& id, const std::string& reason) override;
  absl::Status EndJob(const std::string& id, const std::string& outcome) override;

  // Whether a write fails now; and what hears of records before they are written.
  std::function<absl::Status()> refuse = [] { return absl::OkStatus(); };
  std::function<void(const std::string& id, const server::CommitRecord& commit)> on_commit;
  // Of a run that has been written.
  std::function<void(const std::string& id, const proto::SavedRun& run)> on_run;

  // For a coordinator that leads from now on: a disk that has the same. To whoever uses this one
  // every write that is waited for is refused, as etcd does; what is written in every step is
  // queued there, and lost (docs/decisions/0019-coordinators-stand-by-over-etcd.md).
  std::unique_ptr<SimStore> Succeed();

  void Sync() { synced_ = transactions_.size(); }
  // Returns how many transactions are gone.
  int64_t LosePower(Random& random);

 private:
  using Transaction = std::function<absl::Status(server::StateStore&)>;
  static constexpr uint64_t kCluster = 7;
  void Replay();
  absl::Status WriteLater(Transaction transaction);
  absl::Status Write(Transaction transaction);
  absl::Status WriteSynced(Transaction transaction);

  std::unique_ptr<server::StateStore> contents_ = server::MakeMemoryStateStore(kCluster);
  std::vector<Transaction> transactions_;
  size_t synced_ = 0;
  bool succeeded_ = false;
};

}  // namespace shoal::simulation

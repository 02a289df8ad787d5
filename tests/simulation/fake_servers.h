// Parameter servers that keep books instead of weights: the real StepState decides what a command
// does, and a number stands for all weights, into which each commit works the samples of its step.
// They answer over the simulated network.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/rpc/newest_term.h"
#include "core/rpc/parameter_server_service.h"
#include "server/coordinator/job/server_client.h"
#include "server/coordinator/testing/fake_job.h"
#include "server/service/step_state.h"
#include "server/store/key_set.h"
#include "tests/simulation/sim_context.h"
#include "tests/simulation/sim_process.h"

namespace shoal::simulation {

// The weights after a step, from those before it and the samples that count in it.
uint64_t NextWeights(uint64_t weights, int64_t step, const std::vector<int64_t>& samples);

class FakeServers;

class FakeServer final : public rpc::ParameterServerService {
 public:
  FakeServer(FakeServers* all, int index);

  absl::StatusOr<proto::TakeOverReply> TakeOver(const proto::TakeOverRequest& request) override;
  absl::StatusOr<proto::ConfigureReply> Configure(const proto::ConfigureRequest& request) override;
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(
      const proto::BeginAttemptRequest& request) override;
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest& request) override;
  absl::StatusOr<proto::CommitReply> Commit(const proto::CommitRequest& request) override;
  absl::StatusOr<proto::WriteCheckpointReply> WriteCheckpoint(
      const proto::WriteCheckpointRequest& request) override;
  absl::StatusOr<proto::AdmitClientsReply> AdmitClients(
      const proto::AdmitClientsRequest& request) override;
  absl::StatusOr<proto::FenceClientReply> FenceClient(
      const proto::FenceClientRequest& request) override;
  absl::StatusOr<proto::ReleaseJobReply> ReleaseJob(
      const proto::ReleaseJobRequest& request) override;
  absl::StatusOr<proto::GetChecksumsReply> GetChecksums(
      const proto::GetChecksumsRequest&) override {
    return absl::UnimplementedError("there are no weights");
  }
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest&) override {
    return absl::UnimplementedError("there are no weights");
  }

  // Takes a worker's push, each key once, whoever sends it. FailedPrecondition: refused (another
  // job or attempt, sealed, not admitted, fenced).
  absl::Status Push(const std::string& job_id, uint64_t incarnation, int64_t key, int64_t step,
                    int64_t attempt, const std::vector<int64_t>& pushed);

  int64_t version() const { return state.version(); }
  // Of all commands that have come to this process.
  int64_t highest_term = 0;
  // All that a process holds is gone with it.
  void Forget();

  bool configured = false;
  int released = 0;  // jobs
  std::string job_id;
  proto::ConfigureRequest request;
  server::StepState state;
  proto::CommitRequest newest_commit;
  uint64_t weights = 0;
  server::KeySet keys;                                // of this attempt's pushes
  std::vector<int64_t> samples;                       // of this attempt's pushes
  std::map<int64_t, std::vector<int64_t>> committed;  // step -> samples, of this job
  std::map<int64_t, uint64_t> pinned;                 // versions with their weights
  std::set<uint64_t> admitted;                        // incarnations, to the job
  std::set<uint64_t> fenced;                          // incarnations
  server::testing::FakeDisk* disk = nullptr;          // of the job

 private:
  absl::Status CheckJob(const std::string& id) const;
  // Of a command: its term and its job.
  template <typename Request>
  absl::Status Admit(const Request& wanted) {
    SHOAL_RETURN_IF_ERROR(term_.Admit(wanted.term(), "a command"));
    return CheckJob(wanted.job_id());
  }

  rpc::NewestTerm term_;
  FakeServers* const all_;
  const int index_;
};

class FakeServers {
 public:
  using DiskOf = std::function<server::testing::FakeDisk&(const std::string& directory)>;
  FakeServers(SimContext& context, DiskOf disk_of, int count);

  // Of calls by that process, to the servers that it names by address ("server:1").
  server::ServerClientFactory ClientsOf(SimProcess& caller);

  FakeServer& server(int index) { return *servers_[static_cast<size_t>(index)]; }
  const FakeServer& server(int index) const { return *servers_[static_cast<size_t>(index)]; }
  SimProcess& process(int index) { return *processes_[static_cast<size_t>(index)]; }
  int count() const { return static_cast<int>(servers_.size()); }

  int64_t non_finite_at_step = 0;         // in this step a server reports a non-finite gradient
  std::vector<uint64_t> barrier_workers;  // of the last attempt begun
  int64_t gpu_bytes = 0;                  // taken of a GPU of its own, and a tenth for each client
  int refused_shards = 0;                 // so many servers cannot write theirs
  int lost_pushes = 0;                    // so many prepare calls count one push too few
  absl::Duration checkpoint_time = absl::Milliseconds(5);
  std::function<void(int index)> on_configured = [](int) {};
  std::function<void(int index)> on_committed = [](int) {};
  // A command was carried out.
  std::function<void(int index, int64_t term)> on_obeyed = [](int, int64_t) {};

 private:
  friend class FakeServer;
  class Client;

  SimContext& context_;
  const DiskOf disk_of_;
  std::vector<std::unique_ptr<FakeServer>> servers_;
  std::vector<std::unique_ptr<SimProcess>> processes_;
};

}  // namespace shoal::simulation

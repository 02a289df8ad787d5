// Parameter servers with real stores of a small model (sim_model.h): JobTable, JobCore and
// PushIntake decide, and here is what HostedJob does around them. They answer over the simulated
// network, and take pushes over the simulated transport.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/base/threads/thread_pool.h"
#include "core/rpc/newest_term.h"
#include "core/rpc/parameter_server_service.h"
#include "server/coordinator/job/server_client.h"
#include "server/copy/state_copy.h"
#include "server/service/job_core.h"
#include "server/service/job_table.h"
#include "server/service/push_intake.h"
#include "server/store/job_store.h"
#include "tests/simulation/data/sim_fabric.h"
#include "tests/simulation/sim_context.h"
#include "tests/simulation/sim_job.h"
#include "tests/simulation/sim_process.h"

namespace shoal::simulation {

class SimServers;

// A job at a server.
class SimHostedJob {
 public:
  // Loads the model, or the checkpoint that is asked for.
  SimHostedJob(proto::ConfigureRequest request, proto::ConfigureReply reply, SimJob& job,
               rpc::NewestTerm* term, SimServers& all, int server);

  const proto::ConfigureRequest& request() const { return request_; }
  const proto::ConfigureReply& reply() const { return reply_; }
  void Fence(uint64_t incarnation) { core->Fence(incarnation); }
  // Pins what is published, which is written by `written`, or finds that it was.
  absl::Status Pin(const proto::WriteCheckpointRequest& wanted, Nanoseconds now,
                   Nanoseconds written);
  void GiveUpCheckpoint(Nanoseconds now);
  // Grants a client that may connect what HostedJob does.
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest& request);

  struct Checkpoint {
    server::PinnedCheckpoint what;
    std::string shard;
    Nanoseconds written = 0;
  };

  // Memory for what is to come, and its state from who holds it.
  absl::StatusOr<int64_t> ReserveExtents(const proto::ReserveRequest& request);
  absl::Status FetchExtents(const proto::FetchRequest& request);
  absl::Status FetchGradients(const proto::ReplicateRequest& request);
  // Lets go of what extents took that are here no more.
  void FollowExtents();
  // Addresses of those that back partitions up, in this attempt, by partition.
  std::map<int, std::vector<std::string>> backed_at;
  // Of weights.
  size_t regions() const { return weights_.size(); }

  SimJob& job;
  std::unique_ptr<server::JobStore> store;
  std::unique_ptr<server::JobStore> backups;
  std::unique_ptr<server::JobCore> core;
  std::optional<Checkpoint> checkpoint;  // the newest
  proto::PrepareReply prepared;          // the newest

 private:
  void AllocateWeights(const std::vector<plan::PartitionSpec>& held,
                       const server::StoreOptions& options, int region);
  // `of`: whose reserved places they take.
  std::unique_ptr<server::Store> MakeStore(const std::vector<plan::PartitionSpec>& held,
                                           const server::StoreOptions& options, int region,
                                           const server::JobStore* of);
  // That clients read.
  server::JobStore::Regions ExposedRegions() const;
  template <typename Ids>
  std::vector<plan::PartitionSpec> SpecsOf(const Ids& ids) const;
  template <typename Request>
  std::map<int, server::StateGiver> GiversOf(const Request& request);
  absl::StatusOr<std::string> Accept(const proto::ConnectRequest& request);
  // To those that back it up, each for itself: what is lost they fetch later.
  void SendGradient(int partition, const transport::PushHeader& header);
  server::PushVerdict TakePush(const server::ClientIdentity& client,
                               const transport::PushHeader& header,
                               const server::PushPayload& payload);
  void TakeTurns();
  void LookOverLater();

  const proto::ConfigureRequest request_;
  proto::ConfigureReply reply_;
  SimServers& all_;
  const int server_;
  std::unique_ptr<transport::Transport> transport_;
  std::map<int, std::shared_ptr<transport::Region>> weights_;  // by region of the stores
  std::unique_ptr<server::PushIntake> intake_;
  const std::shared_ptr<void> here_ = std::make_shared<bool>();
};

class SimServer final : public rpc::ParameterServerService {
 public:
  SimServer(SimServers* all, int index);

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
      const proto::GetChecksumsRequest& request) override;
  absl::StatusOr<proto::ReserveReply> Reserve(const proto::ReserveRequest& request) override;
  absl::StatusOr<proto::FetchReply> Fetch(const proto::FetchRequest& request) override;
  absl::StatusOr<proto::ReplicateReply> Replicate(const proto::ReplicateRequest& request) override;
  absl::StatusOr<proto::ReadStateReply> ReadState(const proto::ReadStateRequest& request) override;
  // Nobody does: state is in the answers.
  absl::StatusOr<proto::ConnectStateReply> ConnectState(
      const proto::ConnectStateRequest& request) override;
  absl::StatusOr<proto::TakeGradientReply> TakeGradient(
      const proto::TakeGradientRequest& request) override;
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest& request) override;

  // The job that it holds; null: none.
  SimHostedJob* hosted() const { return hosted_.get(); }
  // Of the newest job, also when that is gone.
  int64_t version() const { return version_; }
  // Whose pushes it was told to take no more.
  const std::set<uint64_t>& fenced() const { return fenced_; }
  // Of all commands that have come to this process.
  int64_t highest_term = 0;
  int released = 0;  // jobs
  // All that a process holds is gone with it.
  void Forget();

 private:
  std::shared_ptr<SimHostedJob> Load(const proto::ConfigureRequest& request);
  void LetGo(const std::string& job_id, int64_t run);

  SimServers* const all_;
  const int index_;
  rpc::NewestTerm term_;
  server::JobTable<SimHostedJob> jobs_{1};
  std::shared_ptr<SimHostedJob> hosted_;
  std::set<uint64_t> fenced_;
  int64_t version_ = 0;
};

class SimServers {
 public:
  using FindJob = std::function<SimJob&(const std::string& directory)>;
  SimServers(SimContext& context, FindJob job_of, int count);

  // Of calls by that process, to the servers that it names by address ("server:1").
  server::ServerClientFactory ClientsOf(SimProcess& caller);

  // Reads state at the server of that address for another.
  server::StateReader ReaderOf(int server, const std::string& address);

  SimServer& server(int index) { return *servers_[static_cast<size_t>(index)]; }
  const SimServer& server(int index) const { return *servers_[static_cast<size_t>(index)]; }
  SimProcess& process(int index) { return *processes_[static_cast<size_t>(index)]; }
  SimFabric& fabric() { return fabric_; }
  SimJob& JobOf(const std::string& directory) const { return job_of_(directory); }
  // How long a process cannot be reached by another yet; 0: that answers, or is gone.
  Nanoseconds UntilReached(const SimProcess& from, const SimProcess& to) const;
  // Of a shard.
  absl::Duration WriteTime(const SimProcess& process) const;
  int count() const { return static_cast<int>(servers_.size()); }

  int64_t non_finite_at_step = 0;         // in this step a server reports a non-finite gradient
  int64_t non_finite_steps = 1;           // and in those after it, so many in all
  std::vector<uint64_t> barrier_workers;  // of the last attempt begun
  int64_t gpu_bytes = 0;                  // taken of a GPU of its own, and a tenth for each client
  int refused_shards = 0;                 // so many servers cannot write theirs
  int lost_pushes = 0;                    // so many prepare calls count one push too few
  absl::Duration checkpoint_time = absl::Milliseconds(5);
  std::function<void(int index)> on_configured = [](int) {};
  std::function<void(int index)> on_committed = [](int) {};
  // An attempt, that had not begun.
  std::function<void(int index)> on_begun = [](int) {};
  // A part of a gradient came to its backup.
  std::function<void(int index, const proto::TakeGradientRequest&)> on_gradient =
      [](int, const auto&) {};
  // A push was taken that is in no sum yet.
  std::function<void(int index, uint64_t incarnation)> on_pushed = [](int, uint64_t) {};
  // A command was carried out.
  std::function<void(int index, int64_t term)> on_obeyed = [](int, int64_t) {};

 private:
  friend class SimHostedJob;
  friend class SimServer;
  class Client;

  SimContext& context_;
  const FindJob job_of_;
  SimFabric fabric_;
  ThreadPool pool_{1};
  Metrics metrics_;
  server::ServerMetrics server_metrics_{metrics_};
  // Connections of servers wake them at the end.
  std::vector<std::unique_ptr<SimProcess>> processes_;
  std::vector<std::unique_ptr<SimServer>> servers_;
};

}  // namespace shoal::simulation

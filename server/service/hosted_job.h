// One job at a parameter server: its store, the transports that expose it, and the connections of
// its clients. Methods are the calls of proto ParameterServer for this job.
//
// What commands, clients and pushes do is decided by JobCore (job_core.h); this runs it between
// gRPC, transports, files and metrics. Slots, and so pushes, are for those alone that the
// coordinator has admitted. Pushes arrive on IntakeThreads.
//
// load_job.cc has how it is made, connect.cc what clients do, move_partitions.cc,
// write_checkpoint.cc and reached_gpu.cc what their names say.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/threads/thread_pool.h"
#include "core/job/job.h"
#include "core/model/shard_map.h"
#include "core/rpc/newest_term.h"
#include "core/transport/transport.h"
#include "proto/server.pb.h"
#include "server/copy/state_copy.h"
#include "server/copy/state_link.h"
#include "server/copy/state_slots.h"
#include "server/service/checkpoint_task.h"
#include "server/service/gpu_memory.h"
#include "server/service/intake_threads.h"
#include "server/service/job_core.h"
#include "server/service/payloads_in_gpu.h"
#include "server/service/push_intake.h"
#include "server/service/server_metrics.h"
#include "server/service/service_options.h"
#include "server/service/sparse_log.h"
#include "server/service/trace/span_log.h"
#include "server/store/job_store.h"

namespace shoal::server {

class HostedJob {
 public:
  // Loads the weights and publishes them. Options, metrics and `term`, which commands are to be of,
  // outlive it.
  static absl::StatusOr<std::unique_ptr<HostedJob>> Create(const proto::ConfigureRequest& request,
                                                           const ParameterServiceOptions& options,
                                                           ServerMetrics* metrics,
                                                           rpc::NewestTerm* term);
  ~HostedJob();
  HostedJob(const HostedJob&) = delete;
  HostedJob& operator=(const HostedJob&) = delete;

  // What it was made from, and the answer.
  const proto::ConfigureRequest& request() const { return request_; }
  const proto::ConfigureReply& reply() const { return reply_; }

  absl::StatusOr<proto::TakeOverReply> TakeOver(const proto::TakeOverRequest& request);
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(const proto::BeginAttemptRequest& request);
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest& request);
  absl::StatusOr<proto::CommitReply> Commit(const proto::CommitRequest& request);
  absl::StatusOr<proto::WriteCheckpointReply> WriteCheckpoint(
      const proto::WriteCheckpointRequest& request);
  absl::StatusOr<proto::GetChecksumsReply> GetChecksums(const proto::GetChecksumsRequest& request);
  absl::StatusOr<proto::AdmitClientsReply> AdmitClients(const proto::AdmitClientsRequest& request);
  absl::StatusOr<proto::ReserveReply> Reserve(const proto::ReserveRequest& request);
  absl::StatusOr<proto::FetchReply> Fetch(const proto::FetchRequest& request);
  absl::StatusOr<proto::ReplicateReply> Replicate(const proto::ReplicateRequest& request);
  absl::StatusOr<proto::ReadStateReply> ReadState(const proto::ReadStateRequest& request);
  absl::StatusOr<proto::ConnectStateReply> ConnectState(const proto::ConnectStateRequest& request);
  absl::StatusOr<proto::TakeGradientReply> TakeGradient(const proto::TakeGradientRequest& request);
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest& request);
  // Waits for that client's pushes under way, refuses later ones, and closes its connection.
  void Fence(uint64_t incarnation) { core_->Fence(incarnation); }
  // Ends what calls may be waiting for.
  void Stop();

 private:
  // A region of weights that clients read over one transport: on the host, and in the server's GPU
  // if they reach it (else null).
  struct ExposedWeights {
    std::shared_ptr<transport::Region> host;
    std::shared_ptr<transport::Region> gpu;
  };
  // By region of the store, then by transport.
  using ExposedRegions = std::map<int, std::vector<ExposedWeights>>;
  // What a handshake grants, while regions may go; the same ones in both.
  struct Grantable {
    JobStore::Regions places;
    ExposedRegions weights;
  };
  struct EnabledTransport {
    std::unique_ptr<transport::Transport> transport;
    transport::TransportStatistics counted;  // by metrics
  };
  // What a client is granted of the server's memory: the regions exposed to it, by index.
  struct GrantedRegions {
    std::vector<proto::Extent> extents;
    int slots = -1;
    int payloads = -1;
    bool in_gpu() const;
  };

  HostedJob(const proto::ConfigureRequest& request, const ParameterServiceOptions& options,
            ServerMetrics* metrics, rpc::NewestTerm* term)
      : options_(options), metrics_(*metrics), term_(*term), request_(request) {}

  // load_job.cc
  absl::Status Load();
  // `exposed`: bytes of weights, by region.
  absl::Status StartTransports(const std::map<int, int64_t>& exposed);
  // One region for each transport; null where it cannot register it.
  absl::StatusOr<std::vector<std::shared_ptr<transport::Region>>> AllocateWeights(int64_t bytes);
  std::span<std::byte> HostWeights(int region) const ABSL_LOCKS_EXCLUDED(exposed_mutex_);
  absl::Status StartIntake(int threads);
  absl::Status CheckMemory(const StoreBytes& bytes, const StoreBytes& backups) const;

  // reached_gpu.cc
  absl::Status OpenGpu();
  bool IsReachedInGpu() const;
  void ExposeGpuWeights();
  proto::ServerGpu DescribeGpuUse(std::span<const plan::PartitionSpec> held) const;

  // move_partitions.cc
  absl::StatusOr<int64_t> ReserveExtents(const proto::ReserveRequest& request);
  // What a store needs for what comes to it.
  static StoreBytes BytesToReserve(const JobStore& store,
                                   std::span<const plan::PartitionSpec> comes,
                                   const StoreOptions& options);
  absl::Status ReserveIn(JobStore& store, std::span<const plan::PartitionSpec> comes,
                         const StoreOptions& options, int64_t weights_bytes);
  absl::Status ReserveRegion(JobStore& store, const JobStore::Places& places, int64_t bytes);
  absl::Status CheckGpuMemory(std::span<const plan::PartitionSpec> comes) const;
  absl::Status FetchExtents(const proto::FetchRequest& request);
  // In what is reserved for them. Clients read those on the host, also where others are in a GPU.
  absl::StatusOr<std::unique_ptr<Store>> MakeArriving(
      const JobStore& of, std::span<const plan::PartitionSpec> comes) const;
  absl::Status FetchGradients(const proto::ReplicateRequest& request);
  absl::Status CheckRun(int64_t run) const;
  std::vector<transport::Transport*> Transports() const;
  StateReader ReaderOf(const std::string& address);
  template <typename Request>
  void KeepGiversOf(const Request& request);
  template <typename Request>
  std::map<int, StateGiver> GiversOf(const Request& request);
  std::vector<plan::PartitionSpec> SpecsOf(std::span<const int> ids) const;
  StoreBytes BytesOfBackups(std::span<const plan::PartitionSpec> backups) const;
  absl::StatusOr<std::unique_ptr<Store>> MakeBackups(std::span<const plan::PartitionSpec> backups,
                                                     int region,
                                                     std::span<const WeightsOffsets> places) const;
  // Lets go of regions that the store has no more, and tells metrics what is held.
  void FollowExtents();
  // Weights of all regions, and the state of what is here or arrives.
  StoreBytes BytesHeld() const;

  // write_checkpoint.cc
  absl::StatusOr<std::shared_ptr<CheckpointTask>> PinCheckpoint(
      const proto::WriteCheckpointRequest& request);
  std::shared_ptr<CheckpointTask> NewestCheckpoint() const;
  absl::Status CommitAroundCheckpoint(const proto::CommitRequest& request);

  // connect.cc
  absl::Status CheckConnect(const proto::ConnectRequest& request);
  absl::StatusOr<proto::ConnectReply> Accept(const proto::ConnectRequest& request);
  absl::StatusOr<std::string> AcceptOver(size_t transport, const proto::ConnectRequest& request,
                                         const std::string& offer, const ExposedRegions& weights,
                                         GrantedRegions& granted);
  Grantable FindGrantable() const ABSL_LOCKS_EXCLUDED(exposed_mutex_);
  absl::StatusOr<ClientConnection::Slots> MakeSlots(transport::Transport& transport,
                                                    const ClientIdentity& client, int64_t bytes,
                                                    bool in_gpu);

  std::string WhyRefused(absl::StatusCode code) const;
  PushVerdict TakePush(const ClientIdentity& client, const transport::PushHeader& header,
                       const PushPayload& payload);

  void FollowTransports();

  const ParameterServiceOptions& options_;
  ServerMetrics& metrics_;
  rpc::NewestTerm& term_;
  SparseLog refused_pushes_;
  SpanLog spans_;

  absl::Mutex connect_mutex_;  // one handshake at a time

  // Made by Load and constant after it, in the order in which they must be destroyed from the end.
  const proto::ConfigureRequest request_;
  proto::ConfigureReply reply_;
  plan::Job job_;
  std::vector<plan::UnitSpec> units_;
  plan::UnitReader base_;                        // of what is frozen
  std::vector<plan::PartitionSpec> partitions_;  // of the job
  StoreOptions store_options_;
  int64_t slot_bytes_ = 0;
  // What metrics say that it holds.
  int64_t counted_partitions_ = 0;
  StoreBytes counted_;
  ServerGpu gpu_;         // with service.memory cuda
  std::string gpu_name_;  // among those of all machines; empty: clients do not reach it
  std::optional<PayloadsInGpu> payloads_in_gpu_;  // where it has one
  // Transports of the job that could not be started, with the reason.
  std::vector<std::string> unavailable_;
  std::vector<EnabledTransport> transports_;
  std::unique_ptr<StateSlots> state_slots_;
  // By address, of Fetch and Replicate, which never overlap.
  std::map<std::string, std::shared_ptr<StateLink>> givers_;
  mutable absl::Mutex exposed_mutex_;
  // What goes leaves the store first.
  ExposedRegions exposed_ ABSL_GUARDED_BY(exposed_mutex_);
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<JobStore> store_;
  std::unique_ptr<JobStore> backups_;
  std::unique_ptr<JobCore> core_;
  std::unique_ptr<GradientSender> gradients_;  // with service.replicas
  std::unique_ptr<PushIntake> intake_;
  std::unique_ptr<IntakeThreads> intake_threads_;  // call TakePush
  mutable absl::Mutex checkpoint_mutex_;
  bool stopped_ ABSL_GUARDED_BY(checkpoint_mutex_) = false;
  std::shared_ptr<CheckpointTask> checkpoint_ ABSL_GUARDED_BY(checkpoint_mutex_);  // the newest
};

}  // namespace shoal::server

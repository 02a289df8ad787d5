// The parameter server as a plain class: one method for each call of proto ParameterServer, and the
// data path behind Connect. The gRPC adapter (core/rpc/parameter_server_service.h) calls it from
// many threads; tests call it directly.
//
// Commands of the coordinator run one at a time (commands_mutex_) and follow StepState. Pushes come
// in over the transports' queues on PushIntake's threads: each is checked against what was granted
// and applied under a shared lock on the state, which Prepare, BeginAttempt and FenceClient take
// exclusively to change it, so that none is half applied when they answer.
//
// Failure: a refused call changes nothing. Configure that fails leaves the server unconfigured. A
// GPU that fails in Prepare or Commit leaves a server that answers no later command but that.
// After a crash the server is simply gone: all that must last is in checkpoints and with the
// coordinator.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "core/base/clock.h"
#include "core/base/metrics.h"
#include "core/base/threads/thread_pool.h"
#include "core/job/job.h"
#include "core/model/shard_map.h"
#include "core/rpc/parameter_server_service.h"
#include "core/transport/transport.h"
#include "server/service/checkpoint_task.h"
#include "server/service/gpu_memory.h"
#include "server/service/payloads_in_gpu.h"
#include "server/service/push_intake.h"
#include "server/service/server_metrics.h"
#include "server/service/sparse_log.h"
#include "server/service/step_state.h"
#include "server/store/store.h"

namespace shoal::server {

// A transport by name, for that job, with the memory that will be registered at least, and the way
// to that of the server's GPU; null: there is none.
using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>(
    const std::string& name, const plan::Job& job, int64_t registered_bytes,
    std::shared_ptr<transport::GpuMemory> gpu_memory)>;

struct ParameterServiceOptions {
  TransportFactory create_transport;
  GpuOpener open_gpu;  // with service.memory cuda; empty: such a job is refused
  Clock* clock = &RealClock();
  // 0: service.threads_per_server of the job, and where that is 0 too, the machine's cores divided
  // by its servers.
  int threads = 0;
  // Connections at once. Each worker holds one with push_slots slots.
  int64_t max_clients = 1024;
  absl::Duration look_over_interval = absl::Milliseconds(50);
  // For the disk to take a whole shard.
  absl::Duration checkpoint_timeout = absl::Hours(1);
  // Bytes that can be had on this machine.
  std::function<absl::StatusOr<int64_t>()> available_memory;
};

class ParameterService final : public rpc::ParameterServerHandler {
 public:
  ParameterService(ParameterServiceOptions options, Metrics* metrics);
  ~ParameterService() override;
  // Ends what calls may be waiting for, so that a server can shut down. Calls after it may be
  // refused.
  void Stop();

  absl::StatusOr<proto::ConfigureReply> Configure(const proto::ConfigureRequest& request) override;
  absl::StatusOr<proto::BeginAttemptReply> BeginAttempt(
      const proto::BeginAttemptRequest& request) override;
  absl::StatusOr<proto::PrepareReply> Prepare(const proto::PrepareRequest& request) override;
  absl::StatusOr<proto::CommitReply> Commit(const proto::CommitRequest& request) override;
  absl::StatusOr<proto::WriteCheckpointReply> WriteCheckpoint(
      const proto::WriteCheckpointRequest& request) override;
  absl::StatusOr<proto::GetChecksumsReply> GetChecksums(
      const proto::GetChecksumsRequest& request) override;
  absl::StatusOr<proto::FenceClientReply> FenceClient(
      const proto::FenceClientRequest& request) override;
  absl::StatusOr<proto::ConnectReply> Connect(const proto::ConnectRequest& request) override;

 private:
  // A transport the job enables, and the weights as its clients read them: on the host, and where
  // they reach the server's GPU (else null), there.
  struct EnabledTransport {
    std::unique_ptr<transport::Transport> transport;
    std::shared_ptr<transport::Region> weights;
    std::shared_ptr<transport::Region> gpu_weights;
  };
  // What a client is granted of the server's memory: the regions exposed to it, by index.
  struct GrantedRegions {
    int weights = 0;
    int headers = 0;
    int slots = -1;
    int payloads = -1;
    bool in_gpu() const { return weights != headers || payloads != slots; }
  };
  // All that Configure makes, in the order in which it must be destroyed from the end.
  struct Configuration {
    proto::ConfigureRequest request;
    proto::ConfigureReply reply;
    plan::Job job;
    plan::ShardMap shard_map;
    int64_t slot_bytes = 0;
    ServerGpu gpu;         // with service.memory cuda
    std::string gpu_name;  // among those of all machines; empty: clients do not reach it
    std::optional<PayloadsInGpu> payloads_in_gpu;  // where it has one
    std::vector<std::string>
        unavailable;  // transports of the job that could not be started, with the reason
    std::vector<EnabledTransport> transports;
    std::unique_ptr<ThreadPool> pool;
    std::unique_ptr<Store> store;
    std::unique_ptr<PushIntake> intake;
    std::shared_ptr<CheckpointTask> checkpoint;  // the newest
  };

  absl::StatusOr<std::shared_ptr<CheckpointTask>> PinCheckpoint(
      const proto::WriteCheckpointRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(commands_mutex_);
  absl::Status CommitAroundCheckpoint(const proto::CommitRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(commands_mutex_);
  absl::StatusOr<proto::ConfigureReply> ConfigureLocked(const proto::ConfigureRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(commands_mutex_);
  absl::StatusOr<std::unique_ptr<Configuration>> BuildConfiguration(
      const proto::ConfigureRequest& request);
  absl::Status StartTransports(Configuration& configuration, int64_t weights_bytes);
  absl::Status OpenGpu(Configuration& configuration) const;
  static bool IsReachedInGpu(const Configuration& configuration);
  static void ExposeGpuWeights(Configuration& configuration);
  static proto::ServerGpu DescribeGpuUse(const Configuration& configuration,
                                         std::span<const plan::PartitionSpec> held);
  absl::Status CheckMemory(const StoreBytes& bytes, plan::PartitionMemory memory) const;
  absl::StatusOr<proto::ConnectReply> Accept(Configuration& configuration,
                                             const proto::ConnectRequest& request);
  absl::StatusOr<std::string> AcceptOver(Configuration& configuration, size_t transport,
                                         const proto::ConnectRequest& request,
                                         const std::string& offer, GrantedRegions& granted);
  static absl::StatusOr<ClientConnection::Slots> MakeSlots(Configuration& configuration,
                                                           transport::Transport& transport,
                                                           const ClientIdentity& client,
                                                           int64_t bytes, bool in_gpu);
  absl::Status CheckConnect(const proto::ConnectRequest& request);
  PushVerdict TakePush(const ClientIdentity& client, const transport::PushHeader& header,
                       const PushPayload& payload);
  PushVerdict JudgePush(const ClientIdentity& client, const transport::PushHeader& header,
                        const PushPayload& payload) ABSL_SHARED_LOCKS_REQUIRED(state_mutex_);

  // Runs a call's body, counts and times it, and logs a refusal.
  template <typename Reply, typename Body>
  absl::StatusOr<Reply> Counted(const char* operation, const Body& body) {
    const absl::Time start = options_.clock->Now();
    absl::StatusOr<Reply> reply = body();
    Count(operation, start, reply.status());
    return reply;
  }
  void Count(const char* operation, absl::Time start, const absl::Status& status);

  const ParameterServiceOptions options_;
  ServerMetrics metrics_;
  SparseLog refused_pushes_;

  absl::Mutex commands_mutex_ ABSL_ACQUIRED_BEFORE(state_mutex_);  // one command at a time
  absl::Mutex connect_mutex_;                                      // one handshake at a time
  proto::PrepareReply prepared_ ABSL_GUARDED_BY(commands_mutex_);
  bool stopped_ ABSL_GUARDED_BY(commands_mutex_) = false;

  mutable absl::Mutex state_mutex_;
  StepState state_ ABSL_GUARDED_BY(state_mutex_);
  absl::flat_hash_set<uint64_t> fenced_ ABSL_GUARDED_BY(state_mutex_);
  Configuration* active_ ABSL_GUARDED_BY(state_mutex_) = nullptr;  // set once; owned below

  std::unique_ptr<Configuration> configuration_ ABSL_GUARDED_BY(commands_mutex_);
};

}  // namespace shoal::server

// Ties a worker to its job's other processes: transports, the client of the servers, the exchange
// with peers if there is one, and the source and sink of steps between model and service.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/parameter_client.h"
#include "client/server_client.h"
#include "core/transport/gpu_memory.h"
#include "core/transport/transport.h"
#include "proto/coordinator.pb.h"
#include "worker/exchange/gpu_direct.h"
#include "worker/exchange/layer_barriers.h"
#include "worker/exchange/step_access.h"
#include "worker/job/job_context.h"
#include "worker/peers/layer_exchange.h"

namespace shoal::worker {

struct JobTransports {
  std::vector<std::unique_ptr<transport::Transport>> owned;  // in order of preference
  std::vector<std::string> unavailable;                      // the job's others, with the reason

  std::vector<transport::Transport*> all() const;
};
// Opens the job's transports that this machine has, at least one; they access GPU memory through
// `reach`.
absl::StatusOr<JobTransports> OpenTransports(const JobContext& context,
                                             std::shared_ptr<transport::GpuMemory> reach);

// Call from the compute thread; Cancel from any.
class Attachment {
 public:
  struct Options {
    const JobTransports* transports = nullptr;
    // The model's device, if the client's buffers are out of its reach; otherwise null.
    Device* device = nullptr;
    Stream* compute = nullptr;
    bool transports_reach = false;       // the device's memory
    CollectivesOpener open_collectives;  // may be empty
    // By unit, per microbatch; 0: not this worker's unit.
    std::vector<int> contributions;
    // Called for each unit when a microbatch is done with it.
    std::function<void(int unit)> on_unit_done;
  };
  // Agrees with the job's other workers whether to exchange, if the job allows it, and connects to
  // the servers. Context and options must outlive the result.
  static absl::StatusOr<std::unique_ptr<Attachment>> Create(const JobContext& context,
                                                            Options options,
                                                            const proto::JoinJobReply& join);
  ~Attachment();

  // Goes on by the shard map of `join`, which says nothing else new. False: it cannot (as
  // ParameterClient::Follow), and another is to be made.
  bool Follow(const proto::JoinJobReply& join);

  // Begins a step. The caller begins source and sink; EndStep ends both, even after a failure.
  absl::Status BeginStep(const proto::StepWork& work);
  StepWeights& source() { return *source_; }
  StepGradients& sink() { return *sink_; }
  proto::NextStepRequest::Pushes pushes() const;
  // Blocks until servers have acknowledged all pushes.
  absl::Status FinishPushes();
  // Ends the step, which has gone as `how` says. Returns the first error, that one or the end's.
  absl::Status EndStep(absl::Status how);

  // Why the current attempt cannot continue, or OK. Any thread.
  absl::Status CheckAttempt() const { return client_->CheckAttempt(); }
  bool LacksServer() const { return client_->LacksServer(); }
  void Cancel(const absl::Status& why);

  void AddConnections(proto::FinishedReport& report) const;
  // `fallbacks`: those of connections that the client does not count.
  void UpdateMetrics(int64_t fallbacks) const;

 private:
  Attachment(const JobContext& context, Options options)
      : context_(context), options_(std::move(options)) {}
  bool exchanges() const { return exchange_ != nullptr && exchange_->on(); }
  absl::Status JoinRendezvous(const proto::JoinJobReply& join);
  absl::Status Connect(const proto::JoinJobReply& join);
  absl::StatusOr<client::ClientOptions> MakeClientOptions(
      const std::string& job_id, const std::vector<plan::PartitionSpec>& partitions);
  absl::Status ChoosePaths();
  void LogServersInGpus() const;
  std::vector<int> OwnUnits() const;
  absl::Status MakeSourceAndSink();

  const JobContext& context_;
  const Options options_;
  std::unique_ptr<Memory> pinned_;           // host memory of the device
  GpuDirect gpu_direct_;                     // between servers and the device
  std::unique_ptr<LayerExchange> exchange_;  // set if the job may exchange, on or not
  plan::WorkerShards shards_;                // if the exchange is on
  std::unique_ptr<client::ServerClient> servers_;
  std::unique_ptr<client::ParameterClient> client_;
  std::unique_ptr<LayerBarriers> barriers_;
  std::unique_ptr<StepWeights> source_;
  std::unique_ptr<StepGradients> sink_;
};

}  // namespace shoal::worker

// What ties a worker to the others of its job: transports, the client of the servers, the exchange
// with its peers where they have one, and the source and sink of steps between model and service.
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
// Those of the job that this machine has, at least one; they reach memory of a GPU by `reach`.
absl::StatusOr<JobTransports> OpenTransports(const JobContext& context,
                                             std::shared_ptr<transport::GpuMemory> reach);

// From the compute thread, Cancel from any.
class Attachment {
 public:
  struct Options {
    const JobTransports* transports = nullptr;
    // Where the model computes, if the client's buffers are out of its reach; else null.
    Device* device = nullptr;
    Stream* compute = nullptr;
    bool transports_reach = false;       // the device's memory
    CollectivesOpener open_collectives;  // may be empty
    // By unit, of one microbatch; 0: a unit that is not this worker's.
    std::vector<int> contributions;
    // Told of every unit that a microbatch is done with.
    std::function<void(int unit)> on_unit_done;
  };
  // Settles with the job's other workers whether they exchange among themselves, where they may,
  // and connects to the servers. Context and options must outlive what is made.
  static absl::StatusOr<std::unique_ptr<Attachment>> Create(const JobContext& context,
                                                            Options options,
                                                            const proto::JoinJobReply& join);
  ~Attachment();

  // A step: source and sink are begun by who runs it, and end with EndStep, however it went.
  absl::Status BeginStep(const proto::StepWork& work);
  StepWeights& source() { return *source_; }
  StepGradients& sink() { return *sink_; }
  // Returns when servers have acknowledged all pushes.
  absl::Status FinishPushes(proto::FinishedReport& report);
  // `how` it went; the first error of that and of the end.
  absl::Status EndStep(absl::Status how);

  // Why the attempt at hand cannot go on, or OK. Any thread.
  absl::Status CheckAttempt() const { return client_->CheckAttempt(); }
  void Cancel(const absl::Status& why);

  void AddConnections(proto::FinishedReport& report) const;
  // `fallbacks`: connections of this worker's that the client does not know.
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
  std::unique_ptr<Memory> pinned_;           // of the device
  GpuDirect gpu_direct_;                     // to and from it
  std::unique_ptr<LayerExchange> exchange_;  // where workers may have one, on or not
  plan::WorkerShards shards_;                // where it is on
  std::unique_ptr<client::ServerClient> servers_;
  std::unique_ptr<client::ParameterClient> client_;
  std::unique_ptr<LayerBarriers> barriers_;
  std::unique_ptr<StepWeights> source_;
  std::unique_ptr<StepGradients> sink_;
};

}  // namespace shoal::worker

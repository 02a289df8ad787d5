// Everything a worker has for a job: model, data, the connection to the servers, and the source and
// sink between model and service. Made from the coordinator's answer to JoinJob; runs steps.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/parameter_client.h"
#include "client/server_connector.h"
#include "core/base/clock.h"
#include "core/base/phase_clock.h"
#include "core/data/token_file.h"
#include "core/job/job.h"
#include "core/plan/memory/memory_plan.h"
#include "core/transport/options.h"
#include "core/transport/registry/job_transport.h"
#include "core/transport/transport.h"
#include "proto/coordinator.pb.h"
#include "worker/backend/open/open_machine.h"
#include "worker/exchange/direct_ways.h"
#include "worker/exchange/layer_meetings.h"
#include "worker/exchange/step_access.h"
#include "worker/job/device_flag.h"
#include "worker/job/microbatch_drawer.h"
#include "worker/job/worker_metrics.h"
#include "worker/model/microbatch_model.h"
#include "worker/peers/cancellation.h"
#include "worker/peers/layer_exchange.h"
#include "worker/pipeline/stage_job.h"

namespace shoal::worker {

struct WorkerJobOptions {
  std::string name = "worker";  // "worker-1"
  int index = 0;
  uint64_t incarnation = 0;
  int threads = 0;  // 0: by the job
  // What is computed on, where the flag says more than the job; and the way to it, by default to
  // the CPU.
  DeviceFlag device;
  std::function<absl::StatusOr<OpenedMachine>(const MachineRequest&)> open_machine;
  transport::RdmaFlags rdma;
  // Makes the way to the servers at these addresses (HOST:PORT by index).
  std::function<std::unique_ptr<client::ServerConnector>(const std::vector<std::string>&)>
      connector;
  // Where other workers come in (stages of its group where the job has a pipeline, or peers that
  // exchange among themselves), and the way to them.
  StageDoor* stage_door = nullptr;
  std::function<std::unique_ptr<StagePort>(const StageGroup&)> stage_port;
  // Where connections of other stages come in, for transports that listen.
  transport::TransportOptions transports;
  // Asks the coordinator for a microbatch to be drawn.
  MicrobatchDrawer::Draw draw;
  // Told when this worker is to end, for what is waited for before there is a job to be cancelled.
  Cancellation* cancellation = nullptr;
  // What transports are put into before they are used (fault injection); may be empty.
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)>
      wrap_transport;
};

class WorkerJob {
 public:
  static absl::StatusOr<std::unique_ptr<WorkerJob>> Create(const proto::JoinJobReply& join,
                                                           const WorkerJobOptions& options,
                                                           WorkerMetrics* metrics, Clock& clock);
  ~WorkerJob();

  // Runs the microbatches and returns when all their pushes are acknowledged. What goes wrong is in
  // the report: failed and message.
  proto::FinishedReport RunStep(const proto::StepWork& work);
  // The step at hand fails at once, as does every later one. Any thread.
  void Cancel(const absl::Status& why);

  PhaseClock& phases() { return phases_; }
  client::ClientStatistics client_statistics() const { return client_->statistics(); }
  const plan::WorkerPolicy& policy() const { return policy_; }

 private:
  WorkerJob(const WorkerJobOptions& options, WorkerMetrics* metrics, Clock& clock)
      : options_(options), metrics_(metrics), clock_(clock), phases_(clock) {}
  absl::Status Load(const proto::JoinJobReply& join);
  absl::Status TakeMachine();
  absl::Status PlanMemory(const proto::JoinJobReply& join);
  absl::Status OpenTransports();
  absl::Status MakeModel();
  // Settles with the job's other workers whether they exchange among themselves, where they may.
  absl::Status MeetPeers(const proto::JoinJobReply& join);
  bool exchanges() const { return exchange_ != nullptr && exchange_->on(); }
  // The way to the servers, with source and sink (connect_job.cc).
  absl::Status Connect(const proto::JoinJobReply& join);
  std::vector<int> OwnUnits() const;
  absl::Status ChooseWays(const std::vector<transport::Transport*>& transports);
  void LogServersInGpus() const;
  absl::Status MakeSourceAndSink();
  // A step (run_step.cc), as a stage of a pipeline (run_pipeline.cc).
  absl::Status RunMicrobatches(const proto::StepWork& work, proto::FinishedReport& report);
  absl::Status RunGiven(const proto::StepWork& work, double loss_scale,
                        proto::FinishedReport& report);
  absl::Status RunDrawn(double loss_scale, proto::FinishedReport& report);
  absl::Status RunPipeline(const proto::StepWork& work, double loss_scale,
                           proto::FinishedReport& report);
  absl::Status FinishPushes(proto::FinishedReport& report);
  absl::Status RunOne(const proto::MicrobatchWork& work, double loss_scale,
                      proto::FinishedReport& report);
  void OnUnitDone(int unit);
  void AddConnections(proto::FinishedReport& report) const;
  void FillReport(const std::array<double, kPhases>& before, proto::FinishedReport& report) const;

  const WorkerJobOptions options_;
  WorkerMetrics* const metrics_;
  Clock& clock_;
  PhaseClock phases_;
  plan::Job job_;         // with what this worker computes on
  bool gpu_job_ = false;  // as servers read it
  plan::ModelSpec spec_;
  std::vector<plan::UnitSpec> units_;
  plan::WorkerPolicy policy_;
  std::unique_ptr<formats::TokenFile> data_;
  int64_t registered_bytes_ = 0;  // with transports, as planned
  std::vector<std::unique_ptr<transport::Transport>> transports_;
  std::vector<std::string> unavailable_;          // the job's others, with the reason
  StageGroup group_;                              // where the job has a pipeline
  bool told_passed_host_ = false;                 // in metrics, of the stage's messages
  std::optional<plan::ChosenPipeline> pipeline_;  // likewise
  OpenedMachine machine_;                         // until the model has it
  bool may_exchange_ = false;         // as the job says, whatever this worker computes on
  bool stages_may_exchange_ = false;  // likewise
  // Either of them: a stage of a pipeline, or the whole model.
  std::unique_ptr<StageJob> stage_;
  std::unique_ptr<MicrobatchModel> model_;
  // The model's, where the client's buffers are out of its reach; else null.
  Device* device_ = nullptr;
  Stream* compute_ = nullptr;
  std::unique_ptr<Memory> pinned_;           // of the device
  DirectWays ways_;                          // to and from it
  std::unique_ptr<LayerExchange> exchange_;  // where workers may have one, on or not
  plan::WorkerShards shards_;                // where it is on
  std::unique_ptr<client::ServerConnector> connector_;
  std::unique_ptr<client::ParameterClient> client_;
  std::unique_ptr<LayerMeetings> meetings_;
  std::vector<int> use_order_;      // of one microbatch
  std::vector<int> contributions_;  // by unit, of one microbatch
  std::unique_ptr<StepSource> source_;
  std::unique_ptr<StepSink> sink_;
  std::unique_ptr<MicrobatchDrawer> drawer_;  // where microbatches are drawn
  bool drawing_ = false;                      // in the step at hand
  absl::Time microbatch_started_;
};

}  // namespace shoal::worker

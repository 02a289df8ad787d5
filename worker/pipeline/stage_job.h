// A worker's part in a pipeline: its stage's model, the memory and the runner that execute the
// stage's list, and the links to the other stages of its group. The step runner of a job with a
// pipeline (cluster.pipeline) has one, with one stage too, and hands it source and sink.
//
// Where stages have a GPU each and NCCL, their messages go from GPU to GPU, and the links carry
// just words about them (worker/pipeline/links/communicator_links.h); otherwise the links carry the
// messages. Which of the two is settled when the job begins, and holds for all of a group. Where
// links carry messages of GPUs, each pair of stages settles when it connects whether they are
// copied from GPU to GPU, as two do that share one, or pass through the host (stage_handshake.h).
//
// All stages find the same schedule for a step, each for itself, from what the coordinator chose
// and the step's microbatches.
//
// Threads: Cancel may be called from any, everything else from the one that computes. Failure: of a
// step, the first error, which names stage and action; whoever fails closes its links, so that the
// other stages fail instead of waiting (Abandon, where it failed outside of RunStep). The next
// attempt connects anew.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/clock.h"
#include "core/base/phase_clock.h"
#include "core/job/job.h"
#include "core/plan/pipeline/chosen_pipeline.h"
#include "core/plan/pipeline/planner.h"
#include "core/transport/transport.h"
#include "proto/coordinator.pb.h"
#include "worker/backend/backend.h"
#include "worker/backend/open/open_machine.h"
#include "worker/collectives/collectives.h"
#include "worker/model/transformer_stage.h"
#include "worker/ops/machine.h"
#include "worker/peers/cancellation.h"
#include "worker/peers/stage_door.h"
#include "worker/peers/stage_group.h"
#include "worker/peers/stage_port.h"
#include "worker/pipeline/links/group_links.h"
#include "worker/pipeline/links/stage_handshake.h"
#include "worker/pipeline/stage_runner.h"

namespace shoal::worker {

class StageJob {
 public:
  struct Options {
    StageGroup group;
    plan::ChosenPipeline pipeline;
    std::vector<transport::Transport*> transports;  // in order of preference
    std::vector<std::string> unavailable;           // the job's others, with the reason
    std::unique_ptr<StagePort> port;                // null with one stage
    StageDoor* door = nullptr;
    // Of the job, whatever this worker computes on: whether stages that have a GPU each exchange by
    // collectives. All of a group have to agree, which is settled in Create.
    bool may_exchange = false;
    CollectivesOpener open_collectives;    // may be empty
    std::function<absl::Status()> check;   // whether the attempt at hand goes on, for those
    Cancellation* cancellation = nullptr;  // of this worker, for Create
    PhaseClock* phases = nullptr;
    Clock* clock = &RealClock();
  };
  // Waits for the other stages where they may exchange.
  static absl::StatusOr<std::unique_ptr<StageJob>> Create(const plan::ModelSpec& spec,
                                                          const plan::Job& job, Machine machine,
                                                          Options options);

  // Where the model computes.
  Device* device() const { return device_; }
  Stream* compute() const { return compute_; }

  // The units of its chunks.
  std::span<const plan::UnitRange> chunks() const { return chunks_; }

  bool has_head() const { return model_->has_head(); }

  // The schedule of the next step, with these microbatches, at least one. Costs nothing where they
  // are as large as the last ones, as they are when a step is tried again.
  absl::Status PlanStep(std::span<const plan::MicrobatchSize> microbatches);
  // The units that it gets, in order.
  std::vector<int> Uses() const;

  // Connects where need be, and runs it. Source and sink have begun the step.
  absl::StatusOr<StageReport> RunStep(const proto::StepWork& work,
                                      std::span<const PackedBatch> microbatches, double loss_scale,
                                      UnitSource& source, GradientSink& sink);
  // The group has no microbatches in that step.
  void SkipStep(const proto::StepWork& work);
  // The step at hand failed.
  void Abandon(const absl::Status& why) { links_->Close(why); }
  // The step at hand fails at once, as does every later one.
  void Cancel(const absl::Status& why);

  // By what messages go from GPU to GPU; empty: they go over the transports.
  std::string_view library() const {
    return collectives_ == nullptr ? std::string_view() : collectives_->name();
  }
  const std::string& why_not() const { return why_not_; }  // where they might have
  // Whether links copy from GPU to GPU where they can; and whether some could not.
  bool copies_between_gpus() const { return links_on_device_; }
  bool passed_host() const { return handshake_ != nullptr && handshake_->passed_host(); }

  // There is no step any more: lets go of the other stages.
  void Disconnect() { runner_->Disconnect(); }

  // Connections to other stages over another transport than the job's first.
  int64_t fallbacks() const { return handshake_ == nullptr ? 0 : handshake_->fallbacks(); }
  // By stage; on the thread that runs steps.
  std::map<int, proto::DataConnection> connections() const;

 private:
  StageJob(const plan::ModelSpec& spec, const plan::Job& job, Options options);
  // Settles with the other stages whether they exchange by collectives.
  absl::Status MeetStages(absl::Duration timeout);
  void MakeLinks(const plan::Job& job, absl::Duration timeout);

  const plan::ModelSpec spec_;
  const DType compute_type_;
  const plan::PipelinePace pace_;
  const plan::StageBudget budget_;  // of each stage
  const Options options_;
  const std::vector<plan::UnitRange> chunks_;
  std::unique_ptr<TransformerStage> model_;
  Device* device_ = nullptr;   // the model's
  Stream* compute_ = nullptr;  // likewise
  // On the CPU: copies at the job's rate, memory within its budget.
  std::unique_ptr<Device> bus_;
  std::unique_ptr<Stream> bus_compute_;
  std::unique_ptr<Memory> host_;
  std::unique_ptr<Collectives> collectives_;  // null: messages go over the transports,
  std::string why_not_;                       // for that reason, or there are none
  bool links_on_device_ = false;
  std::unique_ptr<Memory> messages_;  // to and from other stages; null: the transports' own
  std::unique_ptr<StageHandshake> handshake_;  // null with one stage
  std::unique_ptr<GroupLinks> links_;
  std::unique_ptr<StageRunner> runner_;
  std::vector<plan::MicrobatchSize> planned_;  // the step's microbatches
  plan::Schedule schedule_;                    // of them
};

}  // namespace shoal::worker

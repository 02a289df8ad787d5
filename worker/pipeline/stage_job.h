// A worker's part in a pipeline: its stage's model, the memory and the runner that execute the
// stage's list, and the links to the other stages of its group. The step runner of a job with a
// pipeline (cluster.pipeline), even of one stage, owns one and passes it source and sink.
//
// If stages have a GPU each and NCCL, their messages go from GPU to GPU, and the links carry only
// words about them (worker/pipeline/links/communicator_links.h); otherwise the links carry the
// messages. Which of the two is decided when the job begins, and holds for the whole group. If
// links carry messages of GPUs, each pair of stages decides when it connects whether they are
// copied from GPU to GPU, as two do that share one, or pass through the host (connect_stages.h).
//
// Every stage computes the same schedule for a step by itself, from what the coordinator chose and
// the step's microbatches.
//
// Threads: Cancel may be called from any, everything else from the one that computes. Failure: a
// step returns its first error, which names stage and action; the failing stage closes its links,
// so that the other stages fail instead of waiting (call Abandon if it failed outside RunStep). The
// next attempt reconnects.
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
#include "core/base/time_kind_clock.h"
#include "core/job/job.h"
#include "core/plan/pipeline/chosen_pipeline.h"
#include "core/plan/pipeline/planner.h"
#include "core/transport/transport.h"
#include "proto/coordinator.pb.h"
#include "worker/backend/backend.h"
#include "worker/backend/open/open_device.h"
#include "worker/collectives/collectives.h"
#include "worker/model/transformer_stage.h"
#include "worker/ops/compute_device.h"
#include "worker/peers/cancellation.h"
#include "worker/peers/stage_client.h"
#include "worker/peers/stage_group.h"
#include "worker/peers/stage_service.h"
#include "worker/pipeline/links/connect_stages.h"
#include "worker/pipeline/links/group_links.h"
#include "worker/pipeline/stage_runner.h"

namespace shoal::worker {

// How long a stage waits for a neighbour, ten minutes or four steps if those are longer: the last
// stage waits for the forwards of all others, the first for the whole way and back. A neighbour
// that has died is noticed long before, by its connections or its lease.
absl::Duration NeighbourTimeout(const plan::ModelSpec& spec, DType compute,
                                const plan::ChosenPipeline& pipeline,
                                const plan::PipelinePace& pace);

class StageJob {
 public:
  struct Options {
    StageGroup group;
    plan::ChosenPipeline pipeline;
    std::vector<transport::Transport*> transports;  // by preference
    std::vector<std::string> unavailable;           // the job's others, with the reason
    std::unique_ptr<StageClient> client;            // null with one stage
    StageService* service = nullptr;
    // Of the job, whatever this worker computes on: whether stages that have a GPU each exchange by
    // collectives. The whole group must agree, which Create settles.
    bool may_exchange = false;
    CollectivesOpener open_collectives;    // may be empty
    std::function<absl::Status()> check;   // whether the current attempt goes on, for those
    Cancellation* cancellation = nullptr;  // of this worker, for Create
    TimeKindClock* time_kinds = nullptr;
    Clock* clock = &RealClock();
  };
  // Waits for the other stages if they may exchange.
  static absl::StatusOr<std::unique_ptr<StageJob>> Create(const plan::ModelSpec& spec,
                                                          const plan::Job& job,
                                                          ComputeDevice compute_device,
                                                          Options options);

  // Where the model computes.
  Device* device() const { return device_; }
  Stream* compute() const { return compute_; }

  // The units of its chunks.
  std::span<const plan::UnitRange> chunks() const { return chunks_; }

  bool has_head() const { return model_->has_head(); }

  // Plans the schedule of the next step, with these microbatches (at least one): forwards alone if
  // it evaluates. Free if they are as large as the last ones, as when a step is retried.
  absl::Status PlanStep(std::span<const plan::MicrobatchSize> microbatches, bool evaluates);
  // Returns the units whose weights it gets, in order.
  std::vector<int> Uses() const;

  // Connects if necessary, and runs the step. Source and sink must have begun it.
  absl::StatusOr<StageReport> RunStep(const proto::StepWork& work,
                                      std::span<const PackedBatch> microbatches, double loss_scale,
                                      UnitSource& source, GradientSink& sink);
  // Whether the last step failed once links to another stage had closed.
  bool lost_neighbour() const { return lost_neighbour_; }
  // Call if the group has no microbatches in that step.
  void SkipStep(const proto::StepWork& work);
  // Call when the current step has failed.
  void Abandon(const absl::Status& why) { links_->Close(why); }
  // Makes the current step fail at once, and every later one.
  void Cancel(const absl::Status& why);

  // What carries messages from GPU to GPU; empty: they go over the transports.
  std::string_view library() const {
    return collectives_ == nullptr ? std::string_view() : collectives_->name();
  }
  const std::string& why_not() const { return why_not_; }  // if they might have
  // Whether links copy from GPU to GPU where they can; and whether some could not.
  bool copies_between_gpus() const { return links_on_device_; }
  bool passed_host() const { return connections_ != nullptr && connections_->passed_host(); }

  // Call when no step follows: releases the other stages.
  void Disconnect() { runner_->Disconnect(); }

  // Connections to other stages over a transport other than the job's first.
  int64_t fallbacks() const { return connections_ == nullptr ? 0 : connections_->fallbacks(); }
  // By stage; only on the thread that runs steps.
  std::map<int, proto::DataConnection> connections() const;

 private:
  StageJob(const plan::ModelSpec& spec, const plan::Job& job, Options options);
  // Agrees with the other stages whether to exchange by collectives.
  absl::Status JoinRendezvous(absl::Duration timeout);
  void MakeLinks(const plan::Job& job, absl::Duration timeout);

  const plan::ModelSpec spec_;
  const DType compute_type_;
  const plan::PipelinePace pace_;
  const plan::StageBudget budget_;  // of each stage
  const Options options_;
  const std::vector<plan::UnitRange> chunks_;
  std::unique_ptr<TransformerStage> model_;
  Device* device_ = nullptr;   // the model's
  Stream* compute_ = nullptr;  // same as above
  // On the CPU: copies at the job's rate, memory within its budget.
  std::unique_ptr<Device> bus_;
  std::unique_ptr<Stream> bus_compute_;
  std::unique_ptr<Memory> host_;
  std::unique_ptr<Collectives> collectives_;  // null: messages go over the transports,
  std::string why_not_;                       // for this reason, or there are none
  bool links_on_device_ = false;
  std::unique_ptr<Memory> messages_;  // to and from other stages; null: the transports' own
  std::unique_ptr<StageConnections> connections_;  // null with one stage
  std::unique_ptr<GroupLinks> links_;
  std::unique_ptr<StageRunner> runner_;
  std::vector<plan::MicrobatchSize> planned_;  // the step's microbatches
  plan::Schedule schedule_;                    // of them
  bool lost_neighbour_ = false;
};

}  // namespace shoal::worker

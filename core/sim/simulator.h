// Simulated steps: the real planner's plans (core/plan/step/step_plan.h,
// core/plan/step/draw_queue.h), run by workers that keep to the step protocol on a described
// cluster, in no real time. Used by `shoal simulate`, `shoal plan` and bench/on_demand; its results
// are labelled "simulated" wherever they are shown.
//
// Deterministic: no clock, no randomness, no threads. core/sim/network.h says how transfers share
// links. Not simulated: servers' compute and credits, and whatever makes a device's pace vary.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/job/job.h"
#include "core/model/model_spec.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/step/cost_model.h"
#include "core/plan/step/step_plan.h"
#include "core/sim/cluster.h"
#include "core/sim/links.h"
#include "core/sim/network.h"
#include "core/sim/spans.h"
#include "core/sim/use_pattern.h"
#include "core/sim/worker_step.h"

namespace shoal::sim {

struct SimulatorOptions {
  plan::ModelSpec spec;  // whose units travel
  // The model whose FLOPs set the pace, if it is another one: emulated devices. Its blocks are
  // spread evenly over those of `spec`.
  std::optional<plan::ModelSpec> shape;
  // Uses data.microbatch_tokens, plan.pack_groups, plan.cost (fitted counts as FLOPs, which is what
  // a fit finds here), service.accumulate, train.prefetch_units and service's element types.
  plan::Job job;
  plan::WorkerPolicy policy;  // never kAuto
  plan::ClusterSpec cluster;
};

struct StepResult {
  double seconds = 0;  // until the start of the next step
  std::vector<WorkerTimes> workers;
  StepBytes bytes;
  int64_t microbatches = 0;  // of all workers, including empty ones
  int64_t barriers = 0;      // how often all workers waited for each other
  double idle_share = 0;     // of the workers' time: what is not compute
};

class Simulator {
 public:
  explicit Simulator(const SimulatorOptions& options);

  // Simulates one step. Resolves kAuto; kDynamic needs kStep. `spans` may be null.
  absl::StatusOr<StepResult> Run(std::span<const plan::SampleLength> samples,
                                 plan::Assignment assignment, plan::Synchronization synchronization,
                                 SpanSink* spans = nullptr) const;
  // Simulates one step of a given plan (kStep or kLayer; with kLayer all workers must have the same
  // number of microbatches).
  StepResult RunPlan(const plan::StepPlan& plan, plan::Synchronization synchronization,
                     SpanSink* spans = nullptr) const;

  const SimulatorOptions& options() const { return options_; }
  // Returns the seconds of a microbatch on that worker.
  MicrobatchTime TimeOf(const plan::Microbatch& microbatch, size_t worker) const;

 private:
  const TransferTimes& TransfersOfWorker(size_t worker) const;
  StepResult RunDynamic(plan::StepPlan plan, SpanSink* spans) const;
  StepResult RunOnDemand(const plan::StepPlan& plan, SpanSink* spans) const;
  StepResult RunLayers(const plan::StepPlan& plan, SpanSink* spans) const;
  void FinishStep(plan::Synchronization synchronization, const std::vector<int64_t>& microbatches,
                  SpanSink* spans, StepResult& result) const;

  const SimulatorOptions options_;
  const plan::CostModel flops_;
  const plan::CostModel plan_cost_;
  const double head_flops_per_token_;
  const std::vector<double> paces_;   // FLOP/s by worker
  const std::vector<double> speeds_;  // empty: all equal
  const UsePattern pattern_;
  const std::vector<TransferTimes> transfers_;  // synchronization step: see TransfersOfWorker
  const TransferTimes collectives_;
  const WorkerBytes first_bytes_;  // of a worker's first microbatch in a step
  const WorkerBytes later_bytes_;  // of each further one
};

}  // namespace shoal::sim

#include "core/sim/simulator.h"

#include <algorithm>
#include <queue>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/step/draw_queue.h"
#include "core/sim/layer_step.h"

namespace shoal::sim {
namespace {

using plan::Assignment;
using plan::Synchronization;

const plan::ModelSpec& Computed(const SimulatorOptions& options) {
  return options.shape.has_value() ? *options.shape : options.spec;
}

std::vector<double> SpeedsOf(const plan::ClusterSpec& cluster) {
  std::vector<double> speeds = cluster.Speeds();
  const bool equal =
      std::all_of(speeds.begin(), speeds.end(), [](double speed) { return speed == 1; });
  return equal ? std::vector<double>() : speeds;
}

// For workers of the first node, and of the last, which may have fewer.
std::vector<TransferTimes> TransfersOf(const UsePattern& pattern, const plan::ClusterSpec& cluster,
                                       Synchronization synchronization) {
  std::vector<TransferTimes> transfers;
  for (const int64_t worker : {int64_t{0}, cluster.workers() - 1}) {
    transfers.push_back(
        TransferTimesOf(pattern, TransferCostsOf(cluster, synchronization, worker)));
  }
  return transfers;
}

WorkerBytes BytesOf(const UsePattern& pattern, bool first) {
  WorkerBytes bytes;
  for (const Use& use : pattern.uses) {
    bytes.get += first ? use.first_get_bytes : use.later_get_bytes;
    for (const Push& push : use.pushes) {
      bytes.push += first || !pattern.push_per_step ? push.bytes : 0;
    }
  }
  return bytes;
}

}  // namespace

Simulator::Simulator(const SimulatorOptions& options)
    : options_(options),
      flops_(plan::FlopCost(options.job, Computed(options))),
      plan_cost_(options.job.plan.cost == plan::CostSource::kTokens ? plan::TokenCost() : flops_),
      head_flops_per_token_(6.0 * static_cast<double>(Computed(options).vocabulary) *
                            static_cast<double>(Computed(options).hidden)),
      paces_(options.cluster.Paces()),
      speeds_(SpeedsOf(options.cluster)),
      pattern_(BuildUsePattern(options.spec, options.job, options.policy)),
      transfers_(TransfersOf(pattern_, options.cluster, Synchronization::kStep)),
      collectives_(SlowestOf(TransfersOf(pattern_, options.cluster, Synchronization::kLayer))),
      first_bytes_(BytesOf(pattern_, true)),
      later_bytes_(BytesOf(pattern_, false)) {}

const TransferTimes& Simulator::TransfersOfWorker(size_t worker) const {
  const auto& cluster = options_.cluster;
  const auto index = static_cast<int64_t>(worker);
  return transfers_[cluster.DevicesBeside(index) == cluster.DevicesBeside(0) ? 0 : 1];
}

MicrobatchTime Simulator::TimeOf(const plan::Microbatch& microbatch, size_t worker) const {
  const double pace = paces_[worker];
  const double total = flops_.Microbatch(microbatch.tokens, microbatch.squared_tokens);
  const double head = head_flops_per_token_ * static_cast<double>(microbatch.tokens);
  return {.block = (total - head) / (3.0 * static_cast<double>(pattern_.layers)) / pace,
          .head = head / pace,
          .total = total / pace};
}

absl::StatusOr<StepResult> Simulator::Run(std::span<const plan::SampleLength> samples,
                                          Assignment assignment, Synchronization synchronization,
                                          SpanSink* spans) const {
  assignment = plan::Resolved(assignment, synchronization);
  const bool layer = synchronization == Synchronization::kLayer;
  if (assignment == Assignment::kDynamic && layer) {
    return InvalidArgument(
        "plan.assignment dynamic contradicts train.synchronization layer, where all workers run "
        "the same number of microbatches");
  }
  plan::StepPlanOptions plan_options =
      plan::StepPlanOptionsOf(options_.job, static_cast<int64_t>(paces_.size()), speeds_);
  plan_options.assignment = assignment;
  plan_options.equal_counts = layer;
  SHOAL_ASSIGN_OR_RETURN(plan::StepPlan plan, plan::PlanStep(samples, plan_options, plan_cost_));
  return assignment == Assignment::kDynamic ? RunDynamic(std::move(plan), spans)
                                            : RunPlan(plan, synchronization, spans);
}

StepResult Simulator::RunPlan(const plan::StepPlan& plan, Synchronization synchronization,
                              SpanSink* spans) const {
  SHOAL_CHECK(plan.workers.size() == paces_.size());
  return synchronization == Synchronization::kLayer ? RunLayers(plan, spans)
                                                    : RunOnDemand(plan, spans);
}

StepResult Simulator::RunOnDemand(const plan::StepPlan& plan, SpanSink* spans) const {
  StepResult result;
  std::vector<int64_t> counts;
  for (size_t w = 0; w < paces_.size(); ++w) {
    const std::vector<plan::Microbatch>& microbatches = plan.workers[w];
    WorkerStep worker(pattern_, TransfersOfWorker(w), static_cast<int64_t>(w), spans);
    for (size_t m = 0; m < microbatches.size(); ++m) {
      worker.Run(TimeOf(microbatches[m], w), m + 1 == microbatches.size());
    }
    result.workers.push_back(worker.Finish());
    counts.push_back(static_cast<int64_t>(microbatches.size()));
  }
  FinishStep(Synchronization::kStep, counts, spans, result);
  return result;
}

// A worker draws when it has finished what it has, as real ones do within a message's time: so the
// first gets of a drawn microbatch are not prefetched.
StepResult Simulator::RunDynamic(plan::StepPlan plan, SpanSink* spans) const {
  double cost = 0;
  double flops = 0;
  for (const auto& microbatches : plan.workers) {
    for (const plan::Microbatch& microbatch : microbatches) {
      cost += microbatch.cost;
      flops += flops_.Microbatch(microbatch.tokens, microbatch.squared_tokens);
    }
  }
  const double fastest = *std::max_element(paces_.begin(), paces_.end());
  plan::DrawQueue queue(std::move(plan), speeds_, flops > 0 ? fastest * cost / flops : 0);
  queue.Start(0);
  std::vector<WorkerStep> workers;
  std::vector<int64_t> counts(paces_.size(), 0);
  std::vector<int64_t> draws(paces_.size(), 0);
  using Event = std::pair<double, size_t>;  // when it is free, worker
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  const auto run = [&](size_t w, const plan::Microbatch& microbatch) {
    workers[w].RunDrawn(TimeOf(microbatch, w));
    ++counts[w];
  };
  for (size_t w = 0; w < paces_.size(); ++w) {
    workers.emplace_back(pattern_, TransfersOfWorker(w), static_cast<int64_t>(w), spans);
    for (const plan::Microbatch* microbatch : queue.Given(static_cast<int>(w))) {
      run(w, *microbatch);
    }
    events.emplace(workers[w].now(), w);
  }
  while (!events.empty()) {
    const auto [now, w] = events.top();
    events.pop();
    const auto drawn = queue.Draw(static_cast<int>(w), ++draws[w], now, 0);
    SHOAL_CHECK(drawn.ok());
    if (*drawn != nullptr) {
      run(w, **drawn);
      events.emplace(workers[w].now(), w);
    }
  }
  StepResult result;
  for (WorkerStep& worker : workers) {
    result.workers.push_back(worker.Finish());
  }
  FinishStep(Synchronization::kStep, counts, spans, result);
  return result;
}

StepResult Simulator::RunLayers(const plan::StepPlan& plan, SpanSink* spans) const {
  std::vector<std::vector<MicrobatchTime>> microbatches(plan.workers.front().size());
  for (size_t w = 0; w < paces_.size(); ++w) {
    SHOAL_CHECK(plan.workers[w].size() == microbatches.size());
    for (size_t m = 0; m < microbatches.size(); ++m) {
      microbatches[m].push_back(TimeOf(plan.workers[w][m], w));
    }
  }
  LayerStepResult layers = RunLayerStep(pattern_, collectives_, microbatches, spans);
  StepResult result{.workers = std::move(layers.workers), .barriers = layers.barriers};
  result.workers.resize(paces_.size());
  FinishStep(Synchronization::kLayer,
             std::vector<int64_t>(paces_.size(), static_cast<int64_t>(microbatches.size())), spans,
             result);
  return result;
}

void Simulator::FinishStep(Synchronization synchronization,
                           const std::vector<int64_t>& microbatches, SpanSink* spans,
                           StepResult& result) const {
  std::vector<WorkerBytes> bytes;
  for (const int64_t count : microbatches) {
    const int64_t later = std::max<int64_t>(0, count - 1);
    bytes.push_back(count == 0 ? WorkerBytes()
                               : WorkerBytes{first_bytes_.get + later * later_bytes_.get,
                                             first_bytes_.push + later * later_bytes_.push});
    result.microbatches += count;
  }
  result.bytes = CountBytes(options_.cluster, synchronization, bytes);
  result.barriers += 2;  // the start of the step and its end
  double compute = 0;
  for (const WorkerTimes& worker : result.workers) {
    result.seconds = std::max(result.seconds, worker.finish);
    compute += worker.compute;
  }
  result.seconds += StepEndSeconds(options_.cluster);
  if (result.seconds > 0) {
    result.idle_share = 1 - compute / (result.seconds * static_cast<double>(result.workers.size()));
  }
  for (size_t w = 0; w < result.workers.size() && spans != nullptr; ++w) {
    const double finish = result.workers[w].finish;
    if (result.seconds > finish) {
      spans->Add({.worker = static_cast<int64_t>(w),
                  .kind = TimeKind::kStepWait,
                  .begin = finish,
                  .end = result.seconds});
    }
  }
}

}  // namespace shoal::sim

#include "core/plan/pipeline/evaluation.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/status.h"
#include "core/plan/memory/activation_bytes.h"
#include "core/plan/pipeline/fitting_schedule.h"
#include "core/plan/pipeline/offload_ratio.h"
#include "core/plan/pipeline/variants.h"
#include "core/plan/schedule/builders/offload.h"

namespace shoal::plan {
namespace {

// Returns the share of the time that each stage computes, between its first backward and its last
// forward.
std::vector<double> SteadyShares(const ScheduleTimes& times) {
  std::vector<double> shares;
  for (const std::vector<ActionSpan>& spans : times.spans) {
    const auto first = std::ranges::find_if(
        spans, [](const ActionSpan& span) { return span.action.operation != Operation::kForward; });
    const auto last =
        std::ranges::find(spans.rbegin(), spans.rend(), Operation::kForward,
                          [](const ActionSpan& span) { return span.action.operation; })
            .base();
    double compute = 0;
    for (auto span = first; span < last; ++span) {
      compute += span->end - span->begin;
    }
    shares.push_back(compute > 0 ? compute / (std::prev(last)->end - first->begin) : 1);
  }
  return shares;
}

// Estimates the time of microbatches with this much compute on each stage, at the pace of the
// simulated ones once the pipeline is full.
double SecondsAtPaceOf(const ScheduleTimes& times, const std::vector<double>& compute) {
  const std::vector<double> shares = SteadyShares(times);
  double seconds = 0;
  for (size_t stage = 0; stage < compute.size(); ++stage) {
    seconds = std::max(seconds, compute[stage] / shares[stage]);
  }
  return seconds;
}

double AffordableChunks(int chunks, double copy_ratio, const PipelinePace& pace) {
  if (!pace.CanOffload()) {
    return 0;
  }
  const double load = pace.duplex ? copy_ratio / 2 : copy_ratio;
  return load * chunks <= chunks ? chunks : std::floor(4 * chunks / load) / 4;
}

}  // namespace

std::optional<Excess> ExcessOf(std::span<const StageBudget> budgets, const Measured& measured) {
  std::optional<Excess> most;
  const auto look_at = [&](size_t stage, bool host, int64_t limit, int64_t use) {
    if (limit > 0 && use > limit && (!most.has_value() || use - limit > most->bytes)) {
      most = {.stage = static_cast<int>(stage), .host = host, .bytes = use - limit};
    }
  };
  for (size_t stage = 0; stage < budgets.size(); ++stage) {
    const StageBudget& budget = budgets[stage];
    look_at(stage, false, budget.device, budget.other + measured.device_bytes[stage]);
    look_at(stage, true, budget.host, measured.host_bytes[stage]);
  }
  return most;
}

absl::StatusOr<Evaluation> Evaluation::Make(const PipelineRequest& request,
                                            const PipelineChoice& choice, size_t microbatches) {
  const ScheduleShape shape = choice.ShapeOf(microbatches);
  ScheduleCosts costs = PipelineCosts(
      {.spec = request.spec, .compute = request.compute, .recompute = choice.recompute}, shape,
      choice.split, std::span(request.microbatches).first(microbatches), request.pace);
  Schedule schedule =
      BuildSchedule(choice.schedule, choice.stages, choice.chunks, shape.microbatches, &costs);
  Evaluation evaluation(request, std::move(costs), std::move(schedule));
  evaluation.rest_.resize(static_cast<size_t>(choice.stages));
  SHOAL_ASSIGN_OR_RETURN(const ScheduleTimes times,
                         SimulateSchedule(evaluation.schedule_, evaluation.costs_,
                                          StreamsOf(request.pace), Spans::kCompute));
  if (microbatches < request.microbatches.size()) {
    const PipelineModel model{
        .spec = request.spec, .compute = request.compute, .recompute = choice.recompute};
    evaluation.rest_ = StageSums(
        choice,
        UnitCosts(model, std::span(request.microbatches).subspan(microbatches), request.pace));
    evaluation.rest_seconds_ = SecondsAtPaceOf(times, evaluation.rest_);
  }
  evaluation.without_ = evaluation.MeasuredOf(times, 0);
  evaluation.times_ = LatestComputeTimes(evaluation.schedule_, evaluation.costs_, times);
  evaluation.copy_ratio_ = OffloadRatio(shape, evaluation.costs_);
  evaluation.affordable_ = AffordableChunks(choice.chunks, evaluation.copy_ratio_, request.pace);
  return evaluation;
}

Schedule Evaluation::ScheduleWith(double offloaded_chunks) const {
  if (offloaded_chunks == 0 || !request_->pace.CanOffload()) {
    return schedule_;
  }
  return AddOffloads(schedule_, costs_, times_, FirstChunks(schedule_.shape, offloaded_chunks),
                     StreamsOf(request_->pace))
      .schedule;
}

Measured Evaluation::MeasuredOf(const ScheduleTimes& times, double offloaded_chunks) const {
  Measured measured{.offloaded_chunks = offloaded_chunks,
                    .seconds = times.makespan + rest_seconds_};
  for (size_t stage = 0; stage < times.stages.size(); ++stage) {
    const double compute = times.stages[stage].compute + rest_[stage];
    measured.bubble_share =
        std::max(measured.bubble_share, measured.seconds > 0 ? 1 - compute / measured.seconds : 0);
    measured.device_bytes.push_back(times.stages[stage].peak_device_bytes);
    measured.host_bytes.push_back(times.stages[stage].peak_host_bytes);
  }
  measured.excess = ExcessOf(request_->budgets, measured);
  return measured;
}

absl::StatusOr<Measured> Evaluation::With(double offloaded_chunks, Fit fit) const {
  const Schedule schedule = ScheduleWith(offloaded_chunks);
  SHOAL_ASSIGN_OR_RETURN(
      const ScheduleTimes times,
      SimulateSchedule(schedule, costs_, StreamsOf(request_->pace), Spans::kNone));
  Measured measured = MeasuredOf(times, offloaded_chunks);
  if (fit == Fit::kReserved && !measured.excess.has_value()) {
    measured.excess = ReservedExcess(schedule);
  }
  return measured;
}

std::optional<Excess> Evaluation::ReservedExcess(const Schedule& schedule) const {
  Measured reserved;
  for (int stage = 0; stage < static_cast<int>(request_->budgets.size()); ++stage) {
    const auto bytes_of = [&](int chunk, int microbatch) {
      const ChunkCost& cost = costs_.Of(stage, chunk, microbatch);
      return ChunkBytes{
          .activations = cost.activation_bytes,
          .gradients = cost.gradient_bytes,
          .message = MessageBytes(request_->spec, request_->compute,
                                  request_->microbatches[static_cast<size_t>(microbatch)].tokens)};
    };
    const ReservedMemory memory =
        ReservedBy(schedule, stage, bytes_of, request_->budgets[static_cast<size_t>(stage)]);
    reserved.device_bytes.push_back(memory.device);
    reserved.host_bytes.push_back(memory.host);
  }
  return ExcessOf(request_->budgets, reserved);
}

}  // namespace shoal::plan

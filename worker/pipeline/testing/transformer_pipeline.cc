#include "worker/pipeline/testing/transformer_pipeline.h"

#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "core/base/status.h"
#include "core/plan/schedule/builders/testing/random_schedule.h"
#include "core/plan/schedule/layer_split.h"
#include "worker/model/access/testing/passing.h"
#include "worker/model/runner.h"
#include "worker/model/testing/small_model.h"
#include "worker/model/transformer_stage.h"
#include "worker/pipeline/links/in_process_links.h"
#include "worker/pipeline/stage_runner.h"

namespace shoal::worker {
namespace {

using testing_model::PassingGradientSink;
using testing_model::PassingUnitSource;

constexpr double kLossScale = 0.0625;

MemoryUnitSource WeightsOf(const StepConfig& config) {
  return testing_model::RandomWeights(plan::BuildUnits(config.spec), config.compute, 3);
}

void AddContributions(PassingGradientSink& sink, StepOutcome& outcome) {
  for (const auto& [unit, values] : sink.contributions()) {
    std::vector<int64_t>& sums = outcome.gradients[static_cast<size_t>(unit)];
    for (size_t i = 0; i < values.size(); ++i) {
      outcome.finite = outcome.finite && std::isfinite(values[i]);
      sums[i] += std::llround(std::ldexp(values[i], kGradientBits));
    }
  }
}

StepOutcome NothingYet(const StepConfig& config) {
  StepOutcome outcome;
  outcome.losses.resize(config.batches.size());
  for (const plan::UnitSpec& unit : plan::BuildUnits(config.spec)) {
    outcome.gradients.emplace_back(static_cast<size_t>(unit.count));
  }
  return outcome;
}

// A stage and what it owns.
struct Stage {
  Stage(const StepConfig& config, int index, const plan::Schedule& schedule,
        std::span<const plan::UnitRange> split, plan::Recompute recompute,
        ComputeDevice compute_device, bool duplex, const MakeCollectives& make_collectives)
      : device(*compute_device.device),
        compute(compute_device.ops->stream()),
        collectives(make_collectives ? make_collectives(device) : nullptr),
        host(device.NewHostMemory(0)),
        time_kinds(RealClock()) {
    std::vector<plan::UnitRange> chunks;
    for (int chunk = 0; chunk < schedule.shape.chunks; ++chunk) {
      chunks.push_back(split[static_cast<size_t>(schedule.shape.VirtualStageOf(index, chunk))]);
    }
    model = std::make_unique<TransformerStage>(
        *Transformer::Create(config.spec, config.compute, std::move(compute_device)), chunks,
        recompute);
    weights = std::make_unique<PassingUnitSource>(WeightsOf(config), device, compute);
    sink = std::make_unique<PassingGradientSink>(model->units(), device, compute);
    runner = std::make_unique<StageRunner>(StageRunnerOptions{.stage = index,
                                                              .model = model.get(),
                                                              .device = &device,
                                                              .compute = &compute,
                                                              .host = host.get(),
                                                              .time_kinds = &time_kinds,
                                                              .duplex = duplex,
                                                              .poison = true,
                                                              .collectives = collectives.get()});
  }

  Device& device;  // of the model, which goes last
  Stream& compute;
  std::unique_ptr<TransformerStage> model;
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<Memory> host;
  TimeKindClock time_kinds;
  std::unique_ptr<PassingUnitSource> weights;
  std::unique_ptr<PassingGradientSink> sink;
  std::unique_ptr<StageRunner> runner;
};

// Bytes as of the stages' models, to place offloads and to compare with what is measured.
plan::ScheduleCosts CostsOf(const StepConfig& config, const plan::ScheduleShape& shape,
                            std::span<const plan::UnitRange> split, plan::Recompute recompute) {
  plan::ScheduleCosts costs(shape, {.offload = 0.5, .reload = 0.5});
  for (int virtual_stage = 0; virtual_stage < shape.VirtualStages(); ++virtual_stage) {
    const auto [stage, chunk] = shape.At(virtual_stage);
    for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
      const plan::ChunkBytes bytes = plan::PlanChunkBytes(
          config.spec, config.compute, split[static_cast<size_t>(virtual_stage)], recompute,
          config.batches[static_cast<size_t>(microbatch)].token_count());
      plan::ChunkCost& cost = costs.Of(stage, chunk, microbatch);
      cost.activation_bytes = cost.offload_bytes = bytes.activations;
      cost.gradient_bytes = bytes.gradients;
    }
  }
  return costs;
}

}  // namespace

std::vector<PackedBatch> RandomBatches(const plan::ModelSpec& spec, int count, uint64_t seed,
                                       int64_t low, const std::vector<int64_t>& high) {
  Random random(seed);
  std::vector<PackedBatch> batches;
  for (int i = 0; i < count; ++i) {
    std::vector<int64_t> lengths;
    for (const int64_t longest : high) {
      lengths.push_back(random.Between(low, longest));
    }
    batches.push_back(testing_model::RandomBatch(spec, lengths, random.Next(), true));
  }
  return batches;
}

std::vector<plan::Schedule> SchedulesOfStages(int microbatches) {
  return {plan::GPipe(3, 1, microbatches),
          plan::OneForwardOneBackward(4, microbatches),
          plan::InterleavedOneForwardOneBackward(2, 3, microbatches),
          plan::GroupedInterleaved(3, 2, microbatches, 3),
          plan::GroupedInterleaved(4, 2, microbatches, 2),
          plan::UniformPipe(2, 4, microbatches),
          plan::UniformPipe(3, 2, microbatches),
          plan::ZeroBubbleH1(3, microbatches),
          plan::ZeroBubbleH2(4, microbatches),
          plan::ZeroBubbleV(3, microbatches),
          plan::VHalf(4, microbatches),
          plan::VMin(3, microbatches)};
}

absl::StatusOr<StepOutcome> RunAlone(const StepConfig& config, ComputeDevice compute_device) {
  SHOAL_ASSIGN_OR_RETURN(
      const std::unique_ptr<Transformer> model,
      Transformer::Create(config.spec, config.compute, std::move(compute_device)));
  PassingUnitSource weights(WeightsOf(config), model->device(), model->ops().stream());
  PassingGradientSink sink(model->units(), model->device(), model->ops().stream());
  StepOutcome outcome = NothingYet(config);
  for (size_t m = 0; m < config.batches.size(); ++m) {
    SHOAL_ASSIGN_OR_RETURN(const MicrobatchResult ran,
                           RunMicrobatch(*model, config.batches[m], kLossScale, weights, sink));
    outcome.losses[m] = ran.loss_sum;
  }
  AddContributions(sink, outcome);
  return outcome;
}

absl::StatusOr<PipelineOutcome> RunPipeline(const StepConfig& config,
                                            const plan::Schedule& schedule,
                                            plan::Recompute recompute, bool offload,
                                            const MakeComputeDevice& make_device, Random& random,
                                            const MakeCollectives& make_collectives) {
  const plan::ScheduleShape& shape = schedule.shape;
  SHOAL_ASSIGN_OR_RETURN(
      const auto split,
      plan::SplitLayers(std::vector<double>(static_cast<size_t>(config.spec.layers) + 2, 1),
                        shape.stages, shape.chunks, shape.placement));
  const plan::ScheduleCosts costs = CostsOf(config, shape, split, recompute);
  SHOAL_ASSIGN_OR_RETURN(const auto offloaded,
                         plan::AddOffloads(schedule, costs,
                                           offload ? plan::RandomChoice(random, shape, costs)
                                                   : plan::FirstChunks(shape, 0)));
  PipelineOutcome outcome{.step = NothingYet(config)};
  SHOAL_ASSIGN_OR_RETURN(outcome.planned, plan::SimulateSchedule(offloaded.schedule, costs));
  InProcessPipeline links(shape.stages,
                          {.longest_delay = absl::Microseconds(200), .seed = random.Next()});
  std::vector<std::unique_ptr<Stage>> stages;
  for (int stage = 0; stage < shape.stages; ++stage) {
    stages.push_back(std::make_unique<Stage>(config, stage, schedule, split, recompute,
                                             make_device(stage), random.Below(2) == 0,
                                             make_collectives));
  }
  std::vector<absl::StatusOr<StageReport>> reports(stages.size(), absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < stages.size(); ++i) {
    threads.emplace_back([&, i] {
      Stage& stage = *stages[i];
      reports[i] = stage.runner->RunStep({.schedule = &offloaded.schedule,
                                          .microbatches = config.batches,
                                          .loss_scale = kLossScale,
                                          .source = stage.weights.get(),
                                          .sink = stage.sink.get(),
                                          .links = &links.links(static_cast<int>(i)),
                                          .record_spans = true});
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    SHOAL_RETURN_IF_ERROR(reports[i].status());
    const StageReport& report = *reports[i];
    for (size_t m = 0; m < config.batches.size(); ++m) {
      outcome.step.losses[m] += report.microbatches[m].loss_sum;  // 0 but on the last
    }
    AddContributions(*stages[i]->sink, outcome.step);
    outcome.reports.push_back(report);
  }
  return outcome;
}

}  // namespace shoal::worker

// The transformer in a pipeline: losses and gradients have the bits of one worker that runs the
// microbatches one after the other, for every schedule, offload and recompute, whatever comes late,
// with memory that is given back filled with NaN, on the CPU and on a device whose compute comes
// late too.
#include <cmath>
#include <thread>

#include "common/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "plan/layer_split.h"
#include "plan/schedules/testing.h"
#include "worker/backend/cpu/cpu_device.h"
#include "worker/model/runner.h"
#include "worker/model/testing.h"
#include "worker/model/testing_passing.h"
#include "worker/model/transformer_stage.h"
#include "worker/ops/cpu/cpu_ops.h"
#include "worker/ops/testing/late_device.h"
#include "worker/pipeline/in_process_links.h"
#include "worker/pipeline/stage_runner.h"
#include "worker/pipeline/testing/emulated_pipeline.h"

namespace shoal::worker {
namespace {

using testing_model::PassingGradientSink;
using testing_model::PassingUnitSource;

constexpr double kLossScale = 0.0625;

struct Outcome {
  std::vector<double> losses;
  std::vector<std::vector<int64_t>> gradients;

  bool operator==(const Outcome&) const = default;
};

struct Setting {
  plan::ModelSpec spec;
  DType compute = DType::kF32;
  std::vector<PackedBatch> batches;
  std::vector<plan::UnitSpec> units;

  MemoryUnitSource Weights() const { return testing_model::RandomWeights(units, compute, 3); }
};

// By unit, as servers add contributions up in exact mode: each by itself in fixed point, so that
// their order leaves no trace.
std::vector<std::vector<int64_t>> Sums(const Setting& setting, PassingGradientSink& sink) {
  std::vector<std::vector<int64_t>> sums;
  for (const plan::UnitSpec& unit : setting.units) {
    sums.emplace_back(static_cast<size_t>(unit.count));
  }
  for (const auto& [unit, values] : sink.contributions()) {
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_TRUE(std::isfinite(values[i]));
      sums[static_cast<size_t>(unit)][i] += std::llround(std::ldexp(values[i], 44));
    }
  }
  return sums;
}

Setting MakeSetting(bool full, DType compute, int microbatches) {
  Setting setting{.spec = full ? testing_model::FullSpec() : testing_model::SmallSpec(true),
                  .compute = compute};
  setting.spec.layers = 6;
  setting.units = plan::BuildUnits(setting.spec);
  Random random(51);
  for (int i = 0; i < microbatches; ++i) {
    setting.batches.push_back(testing_model::RandomBatch(
        setting.spec, {random.Between(1, 60), random.Between(1, 60)}, random.Next(), true));
  }
  return setting;
}

Outcome RunAlone(const Setting& setting) {
  const auto model = *Transformer::Create(setting.spec, {.compute = setting.compute, .threads = 1});
  PassingUnitSource weights(setting.Weights(), model->device(), model->ops().stream());
  PassingGradientSink sink(setting.units, model->device(), model->ops().stream());
  Outcome outcome;
  for (const PackedBatch& batch : setting.batches) {
    outcome.losses.push_back(RunMicrobatch(*model, batch, kLossScale, weights, sink)->loss_sum);
  }
  outcome.gradients = Sums(setting, sink);
  return outcome;
}

// What a stage computes on: in the calling thread, with copies that come late, or all of it late.
enum class Computes { kAtOnce, kLate };

Machine MakeMachine(Computes computes, uint64_t seed) {
  if (computes == Computes::kLate) {
    return MakeLateMachine(seed);
  }
  Machine machine;
  machine.device = MakeCpuDevice(0, {.longest_delay = absl::Microseconds(200), .seed = seed});
  machine.ops = MakeCpuOps(*machine.device, /*threads=*/1);
  return machine;
}

// A stage and all that it has to itself.
struct Stage {
  Stage(const Setting& setting, int index, const plan::Schedule& schedule,
        std::span<const plan::UnitRange> split, plan::Recompute recompute, Machine machine,
        bool duplex)
      : device(*machine.device),
        compute(machine.ops->stream()),
        host(device.NewHostMemory(0)),
        phases(RealClock()) {
    std::vector<plan::UnitRange> chunks;
    for (int chunk = 0; chunk < schedule.shape.chunks; ++chunk) {
      chunks.push_back(split[static_cast<size_t>(schedule.shape.VirtualStageOf(index, chunk))]);
    }
    model = std::make_unique<TransformerStage>(
        *Transformer::Create(setting.spec, setting.compute, std::move(machine)), chunks, recompute);
    weights = std::make_unique<PassingUnitSource>(setting.Weights(), device, compute);
    sink = std::make_unique<PassingGradientSink>(setting.units, device, compute);
    runner = std::make_unique<StageRunner>(StageRunnerOptions{.stage = index,
                                                              .model = model.get(),
                                                              .device = &device,
                                                              .compute = &compute,
                                                              .host = host.get(),
                                                              .phases = &phases,
                                                              .duplex = duplex,
                                                              .poison = true});
  }

  Device& device;  // of the model, which goes last
  Stream& compute;
  std::unique_ptr<TransformerStage> model;
  std::unique_ptr<Memory> host;
  PhaseClock phases;
  std::unique_ptr<PassingUnitSource> weights;
  std::unique_ptr<PassingGradientSink> sink;
  std::unique_ptr<StageRunner> runner;
};

// Bytes as the stages' models have them, for the placing of offloads and for what is measured.
plan::ScheduleCosts CostsOf(const Setting& setting, const plan::ScheduleShape& shape,
                            std::span<const plan::UnitRange> split, plan::Recompute recompute) {
  plan::ScheduleCosts costs(shape, {.offload = 0.5, .reload = 0.5});
  for (int virtual_stage = 0; virtual_stage < shape.VirtualStages(); ++virtual_stage) {
    const auto [stage, chunk] = shape.At(virtual_stage);
    for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
      const plan::ChunkBytes bytes = plan::PlanChunkBytes(
          setting.spec, setting.compute, split[static_cast<size_t>(virtual_stage)], recompute,
          setting.batches[static_cast<size_t>(microbatch)].token_count());
      plan::ChunkCost& cost = costs.Of(stage, chunk, microbatch);
      cost.activation_bytes = cost.offload_bytes = bytes.activations;
      cost.gradient_bytes = bytes.gradients;
    }
  }
  return costs;
}

Outcome RunPipeline(const Setting& setting, const plan::Schedule& schedule,
                    plan::Recompute recompute, bool offload, Computes computes, Random& random) {
  const plan::ScheduleShape& shape = schedule.shape;
  const auto split = *plan::SplitLayers(std::vector<double>(setting.units.size(), 1), shape.stages,
                                        shape.chunks, shape.placement);
  const plan::ScheduleCosts costs = CostsOf(setting, shape, split, recompute);
  const auto offloaded = *plan::AddOffloads(
      schedule, costs,
      offload ? plan::RandomChoice(random, shape, costs) : plan::FirstChunks(shape, 0));
  const auto times = *plan::SimulateSchedule(offloaded.schedule, costs);
  InProcessPipeline links(shape.stages,
                          {.longest_delay = absl::Microseconds(200), .seed = random.Next()});
  std::vector<std::unique_ptr<Stage>> stages;
  for (int stage = 0; stage < shape.stages; ++stage) {
    stages.push_back(std::make_unique<Stage>(setting, stage, schedule, split, recompute,
                                             MakeMachine(computes, random.Next()),
                                             random.Below(2) == 0));
  }
  StageReports reports(stages.size(), absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < stages.size(); ++i) {
    threads.emplace_back([&, i] {
      Stage& stage = *stages[i];
      reports[i] = stage.runner->RunStep({.schedule = &offloaded.schedule,
                                          .microbatches = setting.batches,
                                          .loss_scale = kLossScale,
                                          .source = stage.weights.get(),
                                          .sink = stage.sink.get(),
                                          .links = &links.links(static_cast<int>(i))});
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  Outcome outcome;
  outcome.losses.resize(setting.batches.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    EXPECT_TRUE(reports[i].ok()) << schedule.name << ": " << Describe(reports[i].status());
    if (!reports[i].ok()) {
      return outcome;
    }
    EXPECT_EQ(reports[i]->peak_device_bytes, times.stages[i].peak_device_bytes) << schedule.name;
    EXPECT_EQ(reports[i]->peak_host_bytes, times.stages[i].peak_host_bytes) << schedule.name;
    for (size_t m = 0; m < outcome.losses.size(); ++m) {
      outcome.losses[m] += reports[i]->microbatches[m].loss_sum;  // 0 but on the last
    }
    const auto sums = Sums(setting, *stages[i]->sink);
    outcome.gradients.resize(sums.size());
    for (size_t unit = 0; unit < sums.size(); ++unit) {
      outcome.gradients[unit].resize(sums[unit].size());
      for (size_t k = 0; k < sums[unit].size(); ++k) {
        outcome.gradients[unit][k] += sums[unit][k];
      }
    }
  }
  return outcome;
}

std::vector<plan::Schedule> Schedules(int microbatches) {
  return {plan::GPipe(1, 4, microbatches),
          plan::GPipe(3, 1, microbatches),
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

class TransformerPipelineTest : public testing::TestWithParam<plan::Recompute> {};

INSTANTIATE_TEST_SUITE_P(Recompute, TransformerPipelineTest,
                         testing::Values(plan::Recompute::kNone, plan::Recompute::kLight,
                                         plan::Recompute::kFull));

TEST_P(TransformerPipelineTest, HasTheBitsOfOneWorker) {
  Random random(52);
  const Setting setting = MakeSetting(/*full=*/false, DType::kF32, 5);
  const Outcome alone = RunAlone(setting);
  EXPECT_GT(alone.losses[0], 0);
  for (const plan::Schedule& schedule : Schedules(5)) {
    for (const bool offload : {false, true}) {
      for (const Computes computes : {Computes::kAtOnce, Computes::kLate}) {
        EXPECT_TRUE(RunPipeline(setting, schedule, GetParam(), offload, computes, random) == alone)
            << schedule.name << (offload ? " with offload" : "")
            << (computes == Computes::kLate ? ", late" : "");
      }
    }
  }
}

TEST_P(TransformerPipelineTest, InBf16WithEveryPartOfTheModelToo) {
  Random random(53);
  const Setting setting = MakeSetting(/*full=*/true, DType::kBF16, 4);
  const Outcome alone = RunAlone(setting);
  for (const plan::Schedule& schedule :
       {plan::UniformPipe(2, 4, 4), plan::VHalf(3, 4), plan::GPipe(1, 3, 4)}) {
    for (const Computes computes : {Computes::kAtOnce, Computes::kLate}) {
      EXPECT_TRUE(RunPipeline(setting, schedule, GetParam(), true, computes, random) == alone)
          << schedule.name << (computes == Computes::kLate ? ", late" : "");
    }
  }
}

}  // namespace
}  // namespace shoal::worker

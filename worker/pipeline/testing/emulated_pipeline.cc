#include "worker/pipeline/testing/emulated_pipeline.h"

#include <algorithm>
#include <cmath>
#include <thread>

#include "absl/status/status.h"
#include "core/base/check.h"
#include "core/base/random.h"
#include "core/plan/schedule/layer_split.h"
#include "fmt/format.h"
#include "worker/paced/emulated_stage.h"

namespace shoal::worker {
namespace {

// As small as a model can be, with a unit for each virtual stage.
plan::ModelSpec SmallestSpec(int virtual_stages, bool tied) {
  return {.family = "llama",
          .vocabulary = 3,
          .hidden = 2,
          .layers = std::max(1, virtual_stages - 2),
          .max_positions = 16,
          .tied_embeddings = tied,
          .kinds = {{.attention = {.heads = 1, .kv_heads = 1, .head_dim = 2},
                     .mlp = {.intermediate = 2}}}};
}

// The same on all stages; different tokens in each step and microbatch.
std::vector<PackedBatch> Batches(int microbatches, int64_t step) {
  std::vector<PackedBatch> batches(static_cast<size_t>(microbatches));
  Random random(7, static_cast<uint64_t>(step));
  for (PackedBatch& batch : batches) {
    std::vector<int32_t> tokens(5);
    std::ranges::generate(tokens, [&] { return static_cast<int32_t>(random.Below(3)); });
    batch.AppendNextToken(tokens);
  }
  return batches;
}

}  // namespace

EmulatedPipeline::EmulatedPipeline(const plan::ScheduleShape& shape,
                                   const EmulatedPipelineOptions& options)
    : options_(options) {
  const plan::ModelSpec spec = SmallestSpec(shape.VirtualStages(), options.tied_embeddings);
  const auto split = plan::SplitLayers(std::vector<double>(static_cast<size_t>(spec.layers) + 2, 1),
                                       shape.stages, shape.chunks, shape.placement);
  SHOAL_CHECK(split.ok());
  for (int stage = 0; stage < shape.stages; ++stage) {
    MakeStage(stage, shape, spec, *split);
  }
}

EmulatedPipeline::~EmulatedPipeline() = default;

void EmulatedPipeline::MakeStage(int index, const plan::ScheduleShape& shape,
                                 const plan::ModelSpec& spec,
                                 const std::vector<plan::UnitRange>& split) {
  Stage& stage = *stages_.emplace_back(std::make_unique<Stage>());
  CpuCopyOptions copies = options_.copies;
  copies.seed = copies.seed * 100 + static_cast<uint64_t>(index);
  stage.device = MakeCpuDevice(options_.device_budget_bytes, copies);
  stage.host = stage.device->NewHostMemory(options_.host_budget_bytes);
  stage.compute = stage.device->NewStream(StreamKind::kCompute);
  stage.model = MakeEmulatedStage(
      {.spec = spec,
       .stage = index,
       .shape = shape,
       .split = split,
       .cost =
           [this, &stage, index](int chunk, int microbatch, const PackedBatch&) {
             plan::ChunkCost cost = stage.costs->Of(index, chunk, microbatch);
             cost.forward *= options_.seconds_per_unit;
             cost.backward_input *= options_.seconds_per_unit;
             cost.backward_weights *= options_.seconds_per_unit;
             return cost;
           },
       .bytes =
           [this, &stage, index](int chunk, int microbatch, const PackedBatch&) {
             const plan::ChunkCost& cost = stage.costs->Of(index, chunk, microbatch);
             return plan::ChunkBytes{.activations = cost.activation_bytes,
                                     .gradients = cost.gradient_bytes,
                                     .message = MessageBytes(microbatch)};
           }},
      RealClock());
  stage.time_kinds = std::make_unique<TimeKindClock>(RealClock());
  stage.source = std::make_unique<MemoryUnitSource>(
      *MemoryUnitSource::Load(stage.model->units(), DType::kF32,
                              [](int, int64_t, std::span<float>) { return absl::OkStatus(); }));
  stage.sink = std::make_unique<MemoryGradientSink>(stage.model->units());
  stage.runner =
      std::make_unique<StageRunner>(StageRunnerOptions{.stage = index,
                                                       .model = stage.model.get(),
                                                       .device = stage.device.get(),
                                                       .compute = stage.compute.get(),
                                                       .host = stage.host.get(),
                                                       .time_kinds = stage.time_kinds.get(),
                                                       .duplex = options_.duplex,
                                                       .poison = options_.poison,
                                                       .wait_timeout = options_.wait_timeout});
}

absl::StatusOr<StageReport> EmulatedPipeline::RunStage(int stage, const plan::Schedule& schedule,
                                                       const plan::ScheduleCosts& costs,
                                                       StageLinks* links, bool record_spans) {
  Stage& at = *stages_[static_cast<size_t>(stage)];
  at.costs = &costs;
  const std::vector<PackedBatch> batches = Batches(schedule.shape.microbatches, step_);
  int64_t targets = 0;
  for (const PackedBatch& batch : batches) {
    targets += batch.target_count();
  }
  absl::StatusOr<StageReport> report =
      at.runner->RunStep({.step = step_,
                          .attempt = attempt_,
                          .schedule = &schedule,
                          .microbatches = batches,
                          .loss_scale = 1.0 / static_cast<double>(targets),
                          .source = at.source.get(),
                          .sink = at.sink.get(),
                          .links = links,
                          .record_spans = record_spans});
  if (!report.ok()) {
    at.sink->Clear();
  }
  return report;
}

StageReports EmulatedPipeline::RunStep(const plan::Schedule& schedule,
                                       const plan::ScheduleCosts& costs,
                                       const std::vector<StageLinks*>& links, bool record_spans) {
  StageReports reports(stages_.size(), absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (int stage = 0; stage < stages(); ++stage) {
    threads.emplace_back([&, stage] {
      reports[static_cast<size_t>(stage)] =
          RunStage(stage, schedule, costs, links[static_cast<size_t>(stage)], record_spans);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return reports;
}

std::string EmulatedPipeline::GradientsOtherThanOne() {
  std::string wrong;
  const std::vector<plan::UnitSpec>& units = stages_[0]->model->units();
  for (const plan::UnitSpec& unit : units) {
    for (size_t element = 0; element < static_cast<size_t>(unit.count); ++element) {
      double sum = 0;
      for (const auto& stage : stages_) {
        sum += static_cast<double>(stage->sink->gradient(unit.index)[element]);
      }
      if (std::abs(sum - 1) > 1e-5 && wrong.empty()) {
        wrong = fmt::format("{} [{}]: {}", unit.name, element, sum);
      }
    }
  }
  for (const auto& stage : stages_) {
    stage->sink->Clear();
  }
  return wrong;
}

}  // namespace shoal::worker

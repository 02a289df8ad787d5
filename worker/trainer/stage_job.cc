#include "worker/trainer/stage_job.h"

#include <algorithm>
#include <utility>

#include "common/bytes.h"
#include "common/logging.h"
#include "common/status.h"
#include "plan/schedule_queues.h"
#include "plan/stage_units.h"
#include "worker/backend/cpu/cpu_device.h"

namespace shoal::worker {
namespace {

// For a neighbour's message, or for a neighbour to come to the same attempt: it may be in the
// middle of a long backward. One that is gone is known long before, by its connections or its
// lease.
constexpr absl::Duration kNeighbourTimeout = absl::Minutes(10);

}  // namespace

std::vector<plan::UnitRange> ChosenPipeline::ChunksOf(int stage) const {
  const plan::ScheduleShape shape = choice.ShapeOf(heaviest.size());
  std::vector<plan::UnitRange> chunks;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    chunks.push_back(choice.split[static_cast<size_t>(shape.VirtualStageOf(stage, chunk))]);
  }
  return chunks;
}

absl::StatusOr<ChosenPipeline> PipelineFrom(const proto::JoinJobReply& join,
                                            const plan::ModelSpec& spec) {
  const proto::PipelinePlan& message = join.pipeline();
  ChosenPipeline pipeline;
  plan::PipelineChoice& choice = pipeline.choice;
  SHOAL_ASSIGN_OR_RETURN(choice.schedule, plan::ParseScheduleName(message.schedule()));
  choice.stages = join.stages_size();
  choice.chunks = message.chunks();
  choice.offloaded_chunks = message.offloaded_chunks();
  const auto recompute = std::ranges::find(plan::kRecomputeNames, message.recompute(),
                                           &decltype(plan::kRecomputeNames)::value_type::first);
  if (recompute == plan::kRecomputeNames.end() || message.microbatches() < 1) {
    return InvalidArgument("the coordinator planned {} microbatches with {} recompute",
                           message.microbatches(), message.recompute());
  }
  choice.recompute = recompute->second;
  for (const proto::UnitRange& units : message.split()) {
    choice.split.push_back({.first = units.first(), .count = units.count()});
  }
  SHOAL_RETURN_IF_ERROR(plan::Validate(spec, choice));
  pipeline.heaviest.assign(
      static_cast<size_t>(message.microbatches()),
      {.tokens = message.tokens(), .squared_tokens = message.squared_tokens()});
  return pipeline;
}

StageJob::StageJob(const plan::ModelSpec& spec, const plan::Job& job, Options options)
    : spec_(spec),
      compute_type_(plan::ComputeDType(job)),
      pace_(job.cluster.pipeline.pace),
      options_(std::move(options)),
      chunks_(options_.pipeline.ChunksOf(options_.group.stage)),
      device_(MakeCpuDevice(job.cluster.pipeline.device_memory,
                            {.bytes_per_second = job.cluster.pipeline.copy_rate}, *options_.clock)),
      host_(device_->NewHostMemory(job.cluster.pipeline.host_memory)),
      compute_(device_->NewStream(StreamKind::kCompute)) {}

absl::StatusOr<std::unique_ptr<StageJob>> StageJob::Create(const plan::ModelSpec& spec,
                                                           const plan::Job& job, Options options) {
  std::unique_ptr<StageJob> stage(new StageJob(spec, job, std::move(options)));
  const Options& own = stage->options_;
  const plan::PipelineChoice& choice = own.pipeline.choice;
  SHOAL_ASSIGN_OR_RETURN(
      auto transformer,
      Transformer::Create(spec, {.compute = stage->compute_type_, .threads = own.threads}));
  stage->model_ =
      std::make_unique<TransformerStage>(std::move(transformer), stage->chunks_, choice.recompute);
  if (own.group.stages() > 1) {
    own.door->Open(own.group);
    stage->handshake_ = std::make_unique<StageHandshake>(
        StageHandshake::Options{.group = own.group,
                                .transports = own.transports,
                                .preferred = job.service.transports.front(),
                                .unavailable = own.unavailable},
        own.port.get(), own.door);
  }
  const plan::ChunkBytes longest =
      plan::PlanChunkBytes(spec, stage->compute_type_, {.first = 1, .count = 1}, choice.recompute,
                           job.data.microbatch_tokens);
  stage->links_ = std::make_unique<GroupLinks>(own.group.stage, longest.message, kNeighbourTimeout,
                                               stage->handshake_.get());
  stage->runner_ =
      std::make_unique<StageRunner>(StageRunnerOptions{.stage = own.group.stage,
                                                       .model = stage->model_.get(),
                                                       .device = stage->device_.get(),
                                                       .compute = stage->compute_.get(),
                                                       .host = stage->host_.get(),
                                                       .phases = own.phases,
                                                       .clock = own.clock,
                                                       .duplex = stage->pace_.duplex,
                                                       .wait_timeout = kNeighbourTimeout});
  std::string units;
  for (const plan::UnitRange& chunk : stage->chunks_) {
    units += fmt::format("{}{}-{}", units.empty() ? "" : ", ", chunk.first, chunk.end() - 1);
  }
  LogInfo("stage {} of {} in group {}: units {}; {}, {:.3g} chunks offloaded, {} recompute",
          own.group.stage, own.group.stages(), own.group.group, units,
          plan::ToString(choice.schedule), choice.offloaded_chunks, plan::Name(choice.recompute));
  return stage;
}

absl::Status StageJob::PlanStep(std::span<const plan::MicrobatchSize> microbatches) {
  SHOAL_ASSIGN_OR_RETURN(schedule_,
                         plan::BuildChosenSchedule(spec_, compute_type_, options_.pipeline.choice,
                                                   microbatches, pace_));
  return absl::OkStatus();
}

std::vector<int> StageJob::Uses() const {
  return plan::StageUseOrder(spec_, schedule_.stages[static_cast<size_t>(options_.group.stage)],
                             chunks_);
}

absl::StatusOr<StageReport> StageJob::RunStep(const proto::StepWork& work,
                                              std::span<const PackedBatch> microbatches,
                                              double loss_scale, UnitSource& source,
                                              GradientSink& sink) {
  if (handshake_ != nullptr) {
    const PhaseClock::Scope waiting(*options_.phases, Phase::kNeighbourWait);
    SHOAL_RETURN_IF_ERROR(
        links_->Prepare({work.step(), work.attempt()}, plan::MessageQueues(schedule_)));
  }
  return runner_->RunStep({.step = work.step(),
                           .attempt = work.attempt(),
                           .schedule = &schedule_,
                           .microbatches = microbatches,
                           .loss_scale = loss_scale,
                           .source = &source,
                           .sink = &sink,
                           .links = links_.get(),
                           .record_spans = work.trace()});
}

void StageJob::Cancel(const absl::Status& why) {
  if (handshake_ != nullptr) {
    handshake_->Cancel(why);
  }
  runner_->Cancel(why);
}

}  // namespace shoal::worker

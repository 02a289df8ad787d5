#include "core/plan/pipeline/chosen_pipeline.h"

#include <cmath>

#include "core/base/status.h"

namespace shoal::plan {

std::vector<UnitRange> ChosenPipeline::ChunksOf(int stage) const {
  const ScheduleShape shape = choice.ShapeOf(heaviest.size());
  std::vector<UnitRange> chunks;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    chunks.push_back(choice.split[static_cast<size_t>(shape.VirtualStageOf(stage, chunk))]);
  }
  return chunks;
}

proto::PipelinePlan ToMessage(const ChosenPipeline& pipeline) {
  const PipelineChoice& choice = pipeline.choice;
  proto::PipelinePlan message;
  message.set_schedule(
      static_cast<proto::PipelinePlan::Schedule>(static_cast<int>(choice.schedule.kind)));
  message.set_group(choice.schedule.group);
  message.set_stages(choice.stages);
  message.set_chunks(choice.chunks);
  message.set_offloaded_chunks(choice.offloaded_chunks);
  message.set_recompute(
      static_cast<proto::PipelineOptions::Recompute>(static_cast<int>(choice.recompute) + 1));
  for (const UnitRange& range : choice.split) {
    proto::UnitRange& units = *message.add_split();
    units.set_first(range.first);
    units.set_count(range.count);
  }
  message.set_microbatches(static_cast<int64_t>(pipeline.heaviest.size()));
  message.set_tokens(pipeline.heaviest.front().tokens);
  message.set_squared_tokens(pipeline.heaviest.front().squared_tokens);
  return message;
}

absl::StatusOr<ChosenPipeline> FromMessage(const proto::PipelinePlan& message,
                                           const ModelSpec& spec, const Job& job) {
  ChosenPipeline pipeline;
  PipelineChoice& choice = pipeline.choice;
  choice.schedule.kind = static_cast<ScheduleKind>(message.schedule());
  choice.schedule.group = message.group();
  choice.stages = message.stages();
  choice.chunks = message.chunks();
  choice.offloaded_chunks = message.offloaded_chunks();
  if (message.recompute() == proto::PipelineOptions::RECOMPUTE_AUTO) {
    return InvalidArgument("a pipeline was planned without saying what is recomputed");
  }
  choice.recompute = static_cast<Recompute>(message.recompute() - 1);
  if (choice.stages != job.cluster.pipeline.stages) {
    return InvalidArgument("a pipeline of {} stages was planned, the job has {}", choice.stages,
                           job.cluster.pipeline.stages);
  }
  if (message.microbatches() < 1 || message.microbatches() > job.train.minibatch_samples ||
      message.tokens() < 0 || message.tokens() > job.data.microbatch_tokens ||
      !std::isfinite(message.squared_tokens()) || message.squared_tokens() < 0) {
    return InvalidArgument("a pipeline was planned for {} microbatches of {} tokens and {} squared",
                           message.microbatches(), message.tokens(), message.squared_tokens());
  }
  for (const proto::UnitRange& units : message.split()) {
    choice.split.push_back({.first = units.first(), .count = units.count()});
  }
  SHOAL_RETURN_IF_ERROR(Validate(spec, choice));
  pipeline.heaviest.assign(
      static_cast<size_t>(message.microbatches()),
      {.tokens = message.tokens(), .squared_tokens = message.squared_tokens()});
  return pipeline;
}

}  // namespace shoal::plan

#include "core/plan/pipeline/job_pipeline.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/plan/memory/activation_bytes.h"
#include "core/plan/memory/server_memory.h"
#include "core/plan/memory/stage_memory.h"
#include "core/plan/memory/stage_scratch.h"
#include "core/plan/pipeline/fitting_schedule.h"
#include "core/plan/schedule/schedule_queues.h"
#include "core/plan/schedule/stage_units.h"

namespace shoal::plan {
namespace {

absl::StatusOr<std::optional<ScheduleChoice>> ScheduleOf(const PipelineOptions& pipeline) {
  if (pipeline.schedule == "auto") {
    return std::nullopt;
  }
  const auto choice = ParseScheduleName(pipeline.schedule);
  if (!choice.ok()) {
    return Annotate(choice.status(), "cluster.pipeline.schedule");
  }
  if (pipeline.chunks > 0) {
    const absl::Status fits =
        CheckChoice(*choice, static_cast<int>(pipeline.stages), static_cast<int>(pipeline.chunks));
    if (!fits.ok()) {
      return InvalidArgument(
          "cluster.pipeline.schedule contradicts cluster.pipeline.stages or "
          "cluster.pipeline.chunks: {}",
          Message(fits));
    }
  }
  return *choice;
}

// Header before each message between stages, in slots and buffers
// (worker/pipeline/links/link_layout.h).
constexpr int64_t kLinkHeader = 64;
constexpr int64_t kAlignment = 64;  // of what pools hand out, and of messages

// Returns the number of messages that there is room for, at the stage's ends of the queues.
int64_t LinkMessages(std::span<const MessageQueue> queues, int stage) {
  int64_t messages = 0;
  for (const MessageQueue& queue : queues) {
    messages +=
        (queue.to == stage ? queue.slots : 0) + (queue.from == stage ? queue.send_buffers : 0);
  }
  return messages;
}

// Messages on the stage's GPU: those being copied from and to the host, or all if they go from GPU
// to GPU, which is decided when the job begins.
int64_t MessagesOnGpu(const Schedule& schedule, int stage) {
  return std::max<int64_t>(2 * kDeviceMessages,
                           LinkMessages(MessageQueues(schedule, kDeviceMessages), stage));
}

}  // namespace

std::vector<MicrobatchSize> HeaviestStep(std::span<const StepPlan> steps,
                                         int64_t microbatch_tokens) {
  size_t count = 1;
  MicrobatchSize largest{.tokens = microbatch_tokens};
  for (const StepPlan& step : steps) {
    for (const std::vector<Microbatch>& group : step.workers) {
      count = std::max(count, group.size());
      for (const Microbatch& microbatch : group) {
        largest.squared_tokens = std::max(largest.squared_tokens, microbatch.squared_tokens);
      }
    }
  }
  return std::vector<MicrobatchSize>(count, largest);
}

StageBudget BudgetOf(const PipelineOptions& pipeline) {
  return {.device = pipeline.device_memory, .host = pipeline.host_memory};
}

absl::StatusOr<PipelineRequest> PipelineRequestOf(const ModelSpec& spec, const Job& job,
                                                  std::vector<MicrobatchSize> microbatches) {
  const PipelineOptions& pipeline = job.cluster.pipeline;
  const int64_t units = spec.layers + 2;
  if (units < pipeline.stages * std::max<int64_t>(1, pipeline.chunks)) {
    return InvalidArgument(
        "{} stages of {} chunks are more than there is to share out: {} layers, embedding and "
        "head; use fewer stages or chunks",
        pipeline.stages, std::max<int64_t>(1, pipeline.chunks), spec.layers);
  }
  if (pipeline.pace.forward_flops <= 0) {
    return InvalidArgument(
        "cluster.pipeline.pace was not measured: submit the job with shoal train, which does so, "
        "or give it");
  }
  SHOAL_ASSIGN_OR_RETURN(std::optional<ScheduleChoice> schedule, ScheduleOf(pipeline));
  PipelineRequest request{.spec = spec,
                          .compute = ComputeDType(job),
                          .stages = static_cast<int>(pipeline.stages),
                          .chunks = static_cast<int>(pipeline.chunks),
                          .microbatches = std::move(microbatches),
                          .pace = pipeline.pace,
                          .schedule = schedule,
                          .offload = pipeline.offload,
                          .recompute = pipeline.recompute};
  if (pipeline.device_memory > 0 || pipeline.host_memory > 0) {
    request.budgets.assign(static_cast<size_t>(pipeline.stages), BudgetOf(pipeline));
  }
  return request;
}

absl::StatusOr<std::vector<StageNeeds>> StageNeedsOf(const ModelSpec& spec, const Job& job,
                                                     const PipelineChoice& choice,
                                                     std::span<const MicrobatchSize> microbatches) {
  const DType compute = ComputeDType(job);
  SHOAL_ASSIGN_OR_RETURN(
      const Schedule schedule,
      BuildFittingSchedule(spec, compute, choice, microbatches, job.cluster.pipeline.pace,
                           BudgetOf(job.cluster.pipeline)));
  const ScheduleShape& shape = schedule.shape;
  const std::vector<MessageQueue> queues = MessageQueues(schedule);
  const int64_t longest_message = MessageBytes(spec, compute, job.data.microbatch_tokens);
  std::vector<int64_t> tokens;
  for (const MicrobatchSize& microbatch : microbatches) {
    tokens.push_back(microbatch.tokens);
  }
  std::vector<StageNeeds> stages;
  for (int stage = 0; stage < shape.stages; ++stage) {
    StageNeeds needs{.microbatches = shape.microbatches};
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      needs.chunks.push_back(choice.split[static_cast<size_t>(shape.VirtualStageOf(stage, chunk))]);
    }
    const StageMemory memory = ReplayMemory(
        schedule, stage,
        [&](int chunk, int microbatch) {
          return PlanChunkBytes(spec, compute, needs.chunks[static_cast<size_t>(chunk)],
                                choice.recompute, tokens[static_cast<size_t>(microbatch)]);
        },
        kAlignment);
    const bool head = std::ranges::any_of(needs.chunks, [&](const UnitRange& units) {
      return units.contains(static_cast<int>(spec.layers) + 1);
    });
    needs.uses = StageUseOrder(spec, schedule.stages[static_cast<size_t>(stage)], needs.chunks);
    needs.activations =
        memory.Of(MemoryPool::kDevice).capacity + memory.Of(MemoryPool::kMessages).capacity;
    needs.offloaded = memory.Of(MemoryPool::kHost).capacity;
    const int64_t link_message = RoundUp(kLinkHeader + longest_message, kAlignment);
    needs.messages = LinkMessages(queues, stage) * link_message;
    needs.own =
        StageOwnBytes(spec, compute, choice.recompute, head, tokens, LossChunkOf(job.train.device));
    if (job.train.device == DeviceKind::kCuda && shape.stages > 1) {
      // A neighbour opens whole pages of the driver.
      needs.own += MessagesOnGpu(schedule, stage) * link_message +
                   SharedGpuBytes(1) * static_cast<int64_t>(Neighbours(shape, stage).size());
    }
    stages.push_back(std::move(needs));
  }
  return stages;
}

absl::StatusOr<int64_t> DeviceMemoryOn(const ModelSpec& spec, const Job& job, int64_t gpu_bytes,
                                       std::span<const StageNeeds> stages) {
  SHOAL_CHECK(!stages.empty());
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const WorkerPolicy& policy : AllowedPolicies(job)) {
    int64_t most_of_a_stage = 0;
    for (const StageNeeds& stage : stages) {
      const GpuMemory gpu = PlanWorkerMemory(spec, job, policy, /*push_bytes=*/0, stage).gpu;
      most_of_a_stage = std::max(most_of_a_stage, gpu.total() - stage.activations);
    }
    least = std::min(least, most_of_a_stage);
  }
  if (least >= gpu_bytes) {
    return ResourceExhausted(
        "a stage needs {} of its GPU's memory beside activations, and has {}: use more stages, or "
        "fewer workers on each GPU",
        FormatBytes(least), FormatBytes(gpu_bytes));
  }
  return gpu_bytes - least;
}

}  // namespace shoal::plan

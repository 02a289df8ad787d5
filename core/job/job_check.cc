#include <algorithm>

#include "core/base/status.h"
#include "core/job/job_schema.h"

namespace shoal::plan {
namespace {

// The place to name for a contradiction between two keys: where the last one was given.
std::string Place(const JobSources& sources, const std::string& a, const std::string& b,
                  const std::string& file_name) {
  const auto first = sources.find(a);
  const auto second = sources.find(b);
  if (first == sources.end() && second == sources.end()) {
    return file_name;
  }
  if (first == sources.end() ||
      (second != sources.end() && second->second.level > first->second.level)) {
    return second->second.where;
  }
  return first->second.where;
}

const JobSource* Highest(const JobSources& sources, const std::vector<std::string>& paths) {
  const JobSource* highest = nullptr;
  for (const std::string& path : paths) {
    const auto found = sources.find(path);
    if (found != sources.end() && (highest == nullptr || found->second.level > highest->level)) {
      highest = &found->second;
    }
  }
  return highest;
}

// Settles on processes started here or a running coordinator, never both.
absl::Status SettleCluster(Job& job, const proto::ClusterOptions& cluster,
                           const JobSources& sources) {
  const JobSource* local = Highest(sources, {"cluster.local.servers", "cluster.local.workers"});
  const JobSource* remote = Highest(sources, {"cluster.coordinator"});
  const JobSource* counts = Highest(sources, {"cluster.servers", "cluster.workers"});
  if (local != nullptr && remote != nullptr && local->level == remote->level) {
    return InvalidArgument(
        "{}: cluster.coordinator contradicts cluster.local; processes are either started here or "
        "there",
        remote->where);
  }
  const bool use_remote = remote != nullptr && (local == nullptr || remote->level > local->level);
  const bool local_wins = local != nullptr && (counts == nullptr || local->level > counts->level);
  if (!use_remote && counts != nullptr && local != nullptr && !local_wins) {
    return InvalidArgument(
        "{}: cluster.servers and cluster.workers go with cluster.coordinator; with cluster.local "
        "say local.servers and local.workers",
        counts->where);
  }
  // Counts of the other form, or defaults, do not apply to this one.
  job.cluster.local = !use_remote && (counts == nullptr || local_wins);
  job.cluster.servers = job.cluster.local ? cluster.local().servers() : cluster.servers();
  job.cluster.workers = !job.cluster.local              ? cluster.workers()
                        : cluster.local().has_workers() ? cluster.local().workers()
                                                        : job.cluster.pipeline.stages;
  if (!use_remote) {
    job.cluster.coordinator.clear();
  }
  return absl::OkStatus();
}

// Returns the key that makes a step run as a schedule.
std::string EnablingKey(const PipelineOptions& pipeline) {
  if (pipeline.stages > 1) {
    return "stages";
  }
  if (pipeline.device_memory > 0) {
    return "device_memory";
  }
  return pipeline.recompute.value_or(Recompute::kNone) != Recompute::kNone ? "recompute"
                                                                           : "offload";
}

absl::Status CheckMinWorkers(const Job& job, const JobSources& sources,
                             const std::string& file_name) {
  if (job.cluster.workers > 0 && job.cluster.min_workers > job.cluster.workers) {
    const std::string workers = job.cluster.local ? "cluster.local.workers" : "cluster.workers";
    return InvalidArgument("{}: cluster.min_workers is {}, and {} only {}",
                           Place(sources, workers, "cluster.min_workers", file_name),
                           job.cluster.min_workers, workers, job.cluster.workers);
  }
  return absl::OkStatus();
}

// A schedule needs all microbatches to be known when the step begins.
absl::Status CheckPipeline(const Job& job, const JobSources& sources,
                           const std::string& file_name) {
  const PipelineOptions& pipeline = job.cluster.pipeline;
  if (job.cluster.workers % pipeline.stages != 0) {
    const std::string workers = job.cluster.local ? "cluster.local.workers" : "cluster.workers";
    return InvalidArgument(
        "{}: {} ({}) is not a multiple of cluster.pipeline.stages ({}); a worker group is one "
        "worker for each stage",
        Place(sources, workers, "cluster.pipeline.stages", file_name), workers, job.cluster.workers,
        pipeline.stages);
  }
  if (pipeline.offload.value > 0 && pipeline.chunks > 0 &&
      pipeline.offload.value > pipeline.chunks) {
    return InvalidArgument(
        "{}: cluster.pipeline.offload ({}) is more than cluster.pipeline.chunks ({})",
        Place(sources, "cluster.pipeline.offload", "cluster.pipeline.chunks", file_name),
        pipeline.offload.value, pipeline.chunks);
  }
  if (!pipeline.enabled()) {
    return absl::OkStatus();
  }
  const std::string key = "cluster.pipeline." + EnablingKey(pipeline);
  const auto contradicts = [&](const std::string& other, std::string_view value) {
    return InvalidArgument("{}: {} contradicts {} {}", Place(sources, key, other, file_name), key,
                           other, value);
  };
  if (job.plan.assignment == Assignment::kDynamic) {
    return contradicts("plan.assignment", Name(job.plan.assignment));
  }
  if (job.train.synchronization == Synchronization::kLayer) {
    return contradicts("train.synchronization", Name(job.train.synchronization));
  }
  if (job.emulate.enabled()) {
    return contradicts("emulate.shape", job.emulate.shape);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckJob(Job& job, const proto::ClusterOptions& cluster, const JobSources& sources,
                      const std::string& file_name) {
  SHOAL_RETURN_IF_ERROR(SettleCluster(job, cluster, sources));
  const TrainOptions& train = job.train;
  if (train.warmup_steps > train.steps) {
    return InvalidArgument("{}: train.warmup_steps ({}) is more than train.steps ({})",
                           Place(sources, "train.warmup_steps", "train.steps", file_name),
                           train.warmup_steps, train.steps);
  }
  if (train.minimum_learning_rate > train.learning_rate) {
    return InvalidArgument(
        "{}: train.minimum_learning_rate ({}) is more than train.learning_rate ({})",
        Place(sources, "train.minimum_learning_rate", "train.learning_rate", file_name),
        train.minimum_learning_rate, train.learning_rate);
  }
  if (train.minimum_learning_rate > 0 && train.schedule == LearningRateSchedule::kConstant) {
    return InvalidArgument(
        "{}: train.minimum_learning_rate ({}) contradicts train.schedule constant",
        Place(sources, "train.minimum_learning_rate", "train.schedule", file_name),
        train.minimum_learning_rate);
  }
  if (job.plan.assignment == Assignment::kDynamic &&
      train.synchronization == Synchronization::kLayer) {
    return InvalidArgument(
        "{}: plan.assignment dynamic contradicts train.synchronization layer, where all workers "
        "run "
        "the same number of microbatches",
        Place(sources, "plan.assignment", "train.synchronization", file_name));
  }
  if (job.service.accumulate == Accumulate::kExact && train.push == PushPolicy::kStep) {
    return InvalidArgument(
        "{}: train.push step contradicts service.accumulate exact: what a worker adds up by itself "
        "depends on what it ran; leave train.push to auto or say microbatch",
        Place(sources, "train.push", "service.accumulate", file_name));
  }
  if (train.device == DeviceKind::kCuda && job.emulate.enabled()) {
    return InvalidArgument(
        "{}: train.device cuda contradicts emulate.shape {}, where nothing is computed",
        Place(sources, "train.device", "emulate.shape", file_name), job.emulate.shape);
  }
  if (job.data.max_sequence_tokens > job.data.microbatch_tokens) {
    return InvalidArgument(
        "{}: data.max_sequence_tokens ({}) is more than data.microbatch_tokens ({}), so the "
        "longest samples would fit in no microbatch",
        Place(sources, "data.max_sequence_tokens", "data.microbatch_tokens", file_name),
        job.data.max_sequence_tokens, job.data.microbatch_tokens);
  }
  SHOAL_RETURN_IF_ERROR(CheckMinWorkers(job, sources, file_name));
  return CheckPipeline(job, sources, file_name);
}

}  // namespace shoal::plan

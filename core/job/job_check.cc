#include <algorithm>

#include "core/base/status.h"
#include "core/job/job_schema.h"
#include "core/job/method_check.h"

namespace shoal::plan {
namespace {

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

// What is recomputed and offloaded is said at one place.
absl::Status CheckRecompute(const proto::Job& said, const JobSources& sources,
                            const std::string& file_name) {
  const proto::PipelineOptions& pipeline = said.cluster().pipeline();
  const auto check = [&](const std::string& section, const auto& of, const std::string& other,
                         const char* why) {
    const bool recomputes = of.recompute() != proto::PipelineOptions::RECOMPUTE_AUTO;
    if (!recomputes && of.offload() == OffloadedChunks::kAuto) {
      return absl::OkStatus();
    }
    const std::string name = recomputes ? "recompute" : "offload";
    const std::string key = section + name;
    return InvalidArgument("{}: {} {}: say {}{}",
                           Place(sources, key, "cluster.pipeline.stages", file_name), key, why,
                           other, name);
  };
  return pipeline.stages() == 1
             ? check("cluster.pipeline.", pipeline, "train.", "is of several stages")
             : check("train.", said.train(), "cluster.pipeline.",
                     "is of workers that hold the whole model, and cluster.pipeline.stages splits "
                     "it");
}

absl::Status CheckLeastMembers(const Job& job, const JobSources& sources,
                               const std::string& file_name) {
  const plan::ClusterOptions& cluster = job.cluster;
  const auto check = [&](const std::string& what, int64_t least, int64_t count) -> absl::Status {
    const std::string key = (cluster.local ? "cluster.local." : "cluster.") + what;
    return count == 0 || least <= count
               ? absl::OkStatus()
               : InvalidArgument("{}: cluster.min_{} is {}, and {} only {}",
                                 Place(sources, key, "cluster.min_" + what, file_name), what, least,
                                 key, count);
  };
  if (cluster.elastic && cluster.local) {
    return InvalidArgument(
        "{}: cluster.elastic is of servers that come to a cluster.coordinator; with cluster.local "
        "say shoal scale",
        Place(sources, "cluster.elastic", "cluster.elastic", file_name));
  }
  SHOAL_RETURN_IF_ERROR(check("servers", cluster.min_servers, cluster.servers));
  return check("workers", cluster.min_workers, cluster.workers);
}

absl::Status CheckReplicas(const Job& job, const JobSources& sources,
                           const std::string& file_name) {
  const std::string place = Place(sources, "service.replicas", "service.replicas", file_name);
  const std::string servers = job.cluster.local ? "cluster.local.servers" : "cluster.servers";
  if (job.cluster.servers > 0 && job.service.replicas > job.cluster.servers) {
    return InvalidArgument("{}: service.replicas is {}, and {} only {}", place,
                           job.service.replicas, servers, job.cluster.servers);
  }
  if (job.service.read_replicas && job.service.replicas < 2) {
    return InvalidArgument(
        "{}: service.read_replicas is of servers that back partitions up, and service.replicas is "
        "{}: say 2 or more",
        Place(sources, "service.read_replicas", "service.read_replicas", file_name),
        job.service.replicas);
  }
  return absl::OkStatus();
}

absl::Status SettleFrozen(Job& job, const JobSources& sources, const std::string& file_name) {
  const char* const key = "service.frozen";
  if (job.service.frozen == Frozen::kAuto) {
    const bool files = job.cluster.local && job.lora.enabled() &&
                       job.lora.quantize == Quantize::kNone;  // all on one machine
    job.service.frozen = files ? Frozen::kFiles : Frozen::kServers;
  }
  if (job.service.frozen == Frozen::kServers) {
    return absl::OkStatus();
  }
  if (!job.lora.enabled()) {
    return InvalidArgument("{}: {} files needs adapters beside a model: say lora.rank",
                           Place(sources, key, key, file_name), key);
  }
  return job.lora.quantize == Quantize::kNone
             ? absl::OkStatus()
             : Contradicts(sources, file_name)(key, "lora.quantize",
                                               "servers quantise, and files are as they are");
}

absl::Status CheckOptimizer(const Job& job, const JobSources& sources,
                            const std::string& file_name) {
  if (job.train.optimizer == Optimizer::kAdamW || job.service.memory == PartitionMemory::kHost) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "{}: train.optimizer adamw8 and lion are of state in memory of the host, and service.memory "
      "is cuda",
      Place(sources, "train.optimizer", "service.memory", file_name));
}

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
    const std::string offload = pipeline.stages == 1 ? "train.offload" : "cluster.pipeline.offload";
    return InvalidArgument("{}: {} ({}) is more than cluster.pipeline.chunks ({})",
                           Place(sources, offload, "cluster.pipeline.chunks", file_name), offload,
                           pipeline.offload.value, pipeline.chunks);
  }
  if (!pipeline.enabled()) {
    return absl::OkStatus();
  }
  if (const auto other = HindersSchedules(job); other.has_value()) {
    const std::string key(ScheduleKey(pipeline));
    return InvalidArgument("{}: {} contradicts {} {}", Place(sources, key, other->first, file_name),
                           key, other->first, other->second);
  }
  return absl::OkStatus();
}

absl::Status CheckTrain(TrainOptions& train, const JobSources& sources,
                        const std::string& file_name) {
  const Contradicts contradicts(sources, file_name);
  const JobSource* steps = Highest(sources, {"train.steps"});
  const JobSource* epochs = Highest(sources, {"train.epochs"});
  if (train.epochs > 0 && steps != nullptr && epochs != nullptr) {
    if (steps->level == epochs->level) {
      return contradicts("train.epochs", "train.steps", "say one of them");
    }
    train.epochs = steps->level > epochs->level ? 0 : train.epochs;
  }
  if (train.epochs > 0) {
    train.steps = TrainOptions().steps;  // SettleEpochs says how many
  } else {
    SHOAL_RETURN_IF_ERROR(Annotate(CheckSchedule(train),
                                   Place(sources, "train.warmup_steps", "train.steps", file_name)));
  }
  for (const ParameterGroup& group : train.groups) {
    if (group.match.empty()) {
      return InvalidArgument("{}: a group of train.groups has no match",
                             Place(sources, "train.groups", "train.groups", file_name));
    }
    if (group.freeze && group != ParameterGroup{.match = group.match, .freeze = true}) {
      return InvalidArgument(
          "{}: the group '{}' of train.groups is frozen: what else it says has no effect",
          Place(sources, "train.groups", "train.groups", file_name), group.match);
    }
  }
  const TrainOptions defaults;
  const bool wsd = train.schedule == LearningRateSchedule::kWsd;
  if (!wsd && train.decay_steps != defaults.decay_steps) {
    return contradicts("train.decay_steps", "train.schedule", "only wsd has it");
  }
  if (!wsd && train.decay_shape != defaults.decay_shape) {
    return contradicts("train.decay_shape", "train.schedule", "only wsd has it");
  }
  if (train.schedule != LearningRateSchedule::kPolynomial &&
      train.decay_power != defaults.decay_power) {
    return contradicts("train.decay_power", "train.schedule", "only polynomial has it");
  }
  return absl::OkStatus();
}

absl::Status SettleMixture(DataOptions& data, const JobSources& sources,
                           const std::string& file_name) {
  const JobSource* train = Highest(sources, {"data.train"});
  const JobSource* mixture = Highest(sources, {"data.mixture"});
  if (train != nullptr && mixture != nullptr && train->level != mixture->level) {
    train->level > mixture->level ? data.mixture.clear() : data.train.clear();
  }
  if (data.mixture.empty()) {
    return data.train.empty() ? InvalidArgument("{}: data.train is missing", file_name)
                              : absl::OkStatus();
  }
  if (!data.train.empty()) {
    return Contradicts(sources, file_name)("data.mixture", "data.train", "say one of them");
  }
  const std::string place = Place(sources, "data.mixture", "data.mixture", file_name);
  if (std::ranges::any_of(data.mixture, [](const auto& source) { return source.path.empty(); })) {
    return InvalidArgument("{}: a source of data.mixture has no path", place);
  }
  const size_t weights = data.weights().size();
  if (weights != 0 && weights != data.mixture.size()) {
    return InvalidArgument(
        "{}: {} of {} sources of data.mixture have a weight: give it to all, or "
        "to none",
        place, weights, data.mixture.size());
  }
  return absl::OkStatus();
}

// What is said of conversations goes with them alone, and what of documents with those.
absl::Status CheckObjective(const Job& job, const JobSources& sources,
                            const std::string& file_name) {
  const DataOptions& data = job.data;
  if (!data.date.empty() && !IsDay(data.date)) {
    return InvalidArgument("{}: data.date: '{}' is no day; write it as 2026-11-27",
                           Place(sources, "data.date", "data.date", file_name),
                           data.date.substr(0, 60));
  }
  const Contradicts contradicts(sources, file_name);
  const char* const with = "train.objective";
  if (job.train.objective != Objective::kPretrain) {
    return data.documents == Documents::kPack
               ? absl::OkStatus()
               : contradicts("data.documents", with, "it is of documents, for pretrain");
  }
  const std::pair<const char*, bool> of_conversations[] = {
      {"data.template", data.chat_template != DataOptions().chat_template},
      {"data.template_arguments", !data.template_arguments.empty()},
      {"data.train_on", data.train_on != TrainOn::kAll},
      {"data.date", !data.date.empty()}};
  for (const auto& [key, given] : of_conversations) {
    if (given) {
      return contradicts(key, with, "pretrain has documents and no conversations");
    }
  }
  return data.oversize == OversizePolicy::kError
             ? absl::OkStatus()
             : contradicts("data.oversize", with, "pretrain cuts documents, and none is too long");
}

// What is of validations goes with one, and that with what forward alone is made for.
absl::Status CheckValidation(const Job& job, const JobSources& sources,
                             const std::string& file_name) {
  const ValidationOptions& validation = job.data.validation;
  const Contradicts contradicts(sources, file_name);
  if (!validation.enabled()) {
    const std::pair<const char*, bool> needs[] = {
        {"data.validation.every_steps", validation.every_steps > 0},
        {"data.validation.limit", validation.limit > 0},
        {"data.validation.at_start", validation.at_start},
        {"checkpoint.best", job.checkpoint.best},
        {"train.early_stop.patience", job.train.early_stop.patience > 0}};
    for (const auto& [key, given] : needs) {
      if (given) {
        return InvalidArgument(
            "{}: {} needs samples to validate on: say data.validation.path or "
            "data.validation.fraction",
            Place(sources, key, key, file_name), key);
      }
    }
    return absl::OkStatus();
  }
  if (!validation.path.empty() && validation.fraction > 0) {
    return contradicts("data.validation.fraction", "data.validation.path", "say one of them");
  }
  if (job.train.early_stop.patience > 0 && validation.every_steps == 0) {
    return contradicts("train.early_stop.patience", "data.validation.every_steps",
                       "it is 0, so that the only validation comes after the last step");
  }
  const char* const said =
      validation.path.empty() ? "data.validation.fraction" : "data.validation.path";
  if (job.emulate.enabled()) {
    return contradicts(said, "emulate.shape",
                       "nothing is computed, and so there is no loss; say one of them");
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view ScheduleKey(const PipelineOptions& pipeline) {
  if (pipeline.stages > 1) {
    return "cluster.pipeline.stages";
  }
  if (pipeline.device_memory > 0) {
    return "cluster.pipeline.device_memory";
  }
  return pipeline.recompute.value_or(Recompute::kNone) != Recompute::kNone ? "train.recompute"
                                                                           : "train.offload";
}

// A schedule needs all microbatches to be known when the step begins.
std::optional<std::pair<std::string, std::string>> HindersSchedules(const Job& job) {
  if (job.plan.assignment == Assignment::kDynamic) {
    return std::pair("plan.assignment", std::string(Name(job.plan.assignment)));
  }
  if (job.train.synchronization == Synchronization::kLayer) {
    return std::pair("train.synchronization", std::string(Name(job.train.synchronization)));
  }
  if (job.preference.reference == Reference::kAdapterOff) {
    return std::pair("preference.reference", "adapter-off");
  }
  if (job.emulate.enabled()) {
    return std::pair("emulate.shape", job.emulate.shape);
  }
  return std::nullopt;
}

absl::Status CheckJob(Job& job, const proto::Job& said, const JobSources& sources,
                      const std::string& file_name) {
  SHOAL_RETURN_IF_ERROR(CheckRecompute(said, sources, file_name));
  SHOAL_RETURN_IF_ERROR(SettleCluster(job, said.cluster(), sources));
  SHOAL_RETURN_IF_ERROR(SettleLora(job, said.lora(), sources, file_name));
  SettleDefaults(sources, job);
  const TrainOptions& train = job.train;
  SHOAL_RETURN_IF_ERROR(SettleMixture(job.data, sources, file_name));
  SHOAL_RETURN_IF_ERROR(CheckTrain(job.train, sources, file_name));
  SHOAL_RETURN_IF_ERROR(CheckOptimizer(job, sources, file_name));
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
  SHOAL_RETURN_IF_ERROR(CheckLeastMembers(job, sources, file_name));
  SHOAL_RETURN_IF_ERROR(CheckReplicas(job, sources, file_name));
  SHOAL_RETURN_IF_ERROR(SettleFrozen(job, sources, file_name));
  SHOAL_RETURN_IF_ERROR(CheckValidation(job, sources, file_name));
  SHOAL_RETURN_IF_ERROR(CheckObjective(job, sources, file_name));
  SHOAL_RETURN_IF_ERROR(CheckPreference(job, sources, file_name));
  return CheckPipeline(job, sources, file_name);
}

}  // namespace shoal::plan

#include "cli/run/preflight.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "cli/terminal/terminal.h"
#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/data/data_files.h"
#include "core/job/job_model.h"
#include "core/job/job_units.h"
#include "core/model/adapters.h"
#include "core/model/huggingface/hf_model.h"
#include "core/plan/schedule/builders/choice.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/shard_file.h"
#include "worker/backend/open/open_device.h"
#include "worker/model/transformer.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaximumJobFile = 1 * kMiB;

// The newest checkpoint of at most `step` that is whole.
std::optional<server::CheckpointInfo> NewestWhole(std::vector<server::CheckpointInfo> checkpoints,
                                                  int64_t step) {
  for (; !checkpoints.empty(); checkpoints.pop_back()) {
    const server::CheckpointInfo& newest = checkpoints.back();
    if (newest.step <= step && server::VerifyCheckpoint(newest.path).empty()) {
      return newest;
    }
  }
  return std::nullopt;
}

// Fills `job` with the job that wrote a checkpoint; one of another release leaves it empty, and why
// is returned.
absl::StatusOr<std::string> ReadJobOf(const server::CheckpointInfo& checkpoint,
                                      std::optional<plan::Job>& job) {
  SHOAL_ASSIGN_OR_RETURN(const auto opened, server::Checkpoint::Open(checkpoint.path));
  SHOAL_ASSIGN_OR_RETURN(const std::string yaml, opened->JobYaml());
  auto parsed = plan::ParseJob(yaml, checkpoint.path + "/" + server::kJobFile);
  if (!parsed.ok()) {
    return std::string(Message(parsed.status()));
  }
  job = *std::move(parsed);
  return "";
}

absl::StatusOr<plan::Job> ParseJobFile(const std::string& job_file,
                                       const std::vector<std::string>& overrides) {
  SHOAL_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(job_file, kMaximumJobFile));
  std::error_code error;
  SHOAL_ASSIGN_OR_RETURN(
      plan::Job job, plan::ParseJob(yaml, job_file, overrides, fs::current_path(error).string()));
  // Known to a layer above the one that reads jobs.
  if (const std::string& schedule = job.cluster.pipeline.schedule; schedule != "auto") {
    SHOAL_RETURN_IF_ERROR(AtKey(plan::ParseScheduleName(schedule).status(),
                                "cluster.pipeline.schedule", job_file, overrides));
  }
  return job;
}

void ResolveJob(plan::Job& job, const std::string& job_file, const plan::MachineOffer& machine) {
  std::error_code error;
  plan::Resolve(job, fs::absolute(job_file, error).parent_path().string(), machine);
}

}  // namespace

absl::StatusOr<plan::Job> ReadJob(const std::string& job_file,
                                  const std::vector<std::string>& overrides) {
  SHOAL_ASSIGN_OR_RETURN(plan::Job job, ParseJobFile(job_file, overrides));
  plan::MachineOffer machine = {.cpu_has_bf16 = worker::CpuHasFastBf16()};
  if (job.train.device == plan::DeviceKind::kAuto) {  // to ask a driver takes a while
    machine.gpus = static_cast<int>(worker::UsableGpus().size());
  }
  ResolveJob(job, job_file, machine);
  return job;
}

absl::StatusOr<plan::Job> ReadJob(const std::string& job_file,
                                  const std::vector<std::string>& overrides,
                                  const plan::MachineOffer& machine) {
  SHOAL_ASSIGN_OR_RETURN(plan::Job job, ParseJobFile(job_file, overrides));
  ResolveJob(job, job_file, machine);
  return job;
}

absl::Status AtKey(const absl::Status& status, const std::string& key, const std::string& job_file,
                   const std::vector<std::string>& overrides) {
  if (status.ok()) {
    return status;
  }
  const auto yaml = ReadFile(job_file, kMaximumJobFile);
  const std::string place = yaml.ok() ? plan::PlaceOf(key, *yaml, job_file, overrides) : job_file;
  // An override names its key itself.
  return Annotate(status, place.starts_with("--set") ? place : fmt::format("{}: {}", place, key));
}

absl::Status AtItsKey(const absl::Status& status, const std::string& job_file,
                      const std::vector<std::string>& overrides) {
  const std::string message(Message(status));
  const size_t end = message.find(": ");
  return end == std::string::npos ? status
                                  : AtKey(absl::Status(status.code(), message.substr(end + 2)),
                                          message.substr(0, end), job_file, overrides);
}

absl::Status CheckData(const std::vector<std::string>& paths, plan::Objective objective) {
  for (const std::string& path : paths) {
    SHOAL_RETURN_IF_ERROR(
        worker::ListDataFiles(path, objective == plan::Objective::kPretrain).status());
  }
  return absl::OkStatus();
}

const char* KeyOfTrainingData(const plan::Job& job) {
  return job.data.mixture.empty() ? "data.train" : "data.mixture";
}

absl::Status CheckGroups(const plan::Job& job, const plan::ModelSpec& spec) {
  std::vector<bool> has_tensors(job.train.groups.size(), false);
  bool trains = false;
  const bool adapts = !spec.adapters.empty();
  for (const plan::UnitSpec& unit : plan::BuildUnits(spec)) {
    if (adapts && unit.kind != plan::UnitKind::kAdapter) {
      continue;  // stays whatever is said of it
    }
    bool unit_trains = false;
    for (const plan::TensorSpec& tensor : unit.tensors) {
      const auto first = std::ranges::find_if(
          job.train.groups, [&](const auto& group) { return plan::Matches(group, tensor.name); });
      if (first != job.train.groups.end()) {
        has_tensors[static_cast<size_t>(first - job.train.groups.begin())] = true;
      }
      unit_trains = unit_trains || first == job.train.groups.end() || !first->freeze;
    }
    if (adapts && !unit_trains) {
      return InvalidArgument(
          "every tensor of {} is frozen: leave one out, or have no adapters there", unit.name);
    }
    trains = trains || unit_trains;
  }
  const auto without = std::ranges::find(has_tensors, false);
  if (without == has_tensors.end()) {
    return trains ? absl::OkStatus()
                  : InvalidArgument(
                        "every tensor of the model is frozen, so nothing trains: leave one out");
  }
  return InvalidArgument(
      "no tensor of the {} is of the group '{}' (names are like {}, and the first group that fits "
      "counts)",
      adapts ? "adapters" : "model",
      job.train.groups[static_cast<size_t>(without - has_tensors.begin())].match,
      adapts ? "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"
             : "model.layers.0.mlp.up_proj.weight");
}

absl::Status CheckCluster(const plan::Job& job, const std::string& job_file, int metrics_port) {
  if (!job.cluster.coordinator.empty() && metrics_port >= 0) {
    return InvalidArgument(
        "--metrics-port is for processes that shoal train starts: give it to those that run with "
        "the coordinator at {}",
        job.cluster.coordinator);
  }
  if (job.cluster.local || !job.cluster.coordinator.empty()) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "{}: cluster.servers and cluster.workers go with cluster.coordinator; to start processes on "
      "this machine say cluster.local.servers and cluster.local.workers",
      job_file);
}

absl::StatusOr<plan::ModelSpec> CheckModel(const plan::Job& job, const std::string& job_file,
                                           const std::vector<std::string>& overrides) {
  const auto model = formats::HfModel::Open(job.model);
  SHOAL_RETURN_IF_ERROR(AtKey(model.status(), "model", job_file, overrides));
  auto adapted = plan::WithJobAdapters((*model)->spec(), job);
  if (absl::IsNotFound(adapted.status())) {
    adapted = NotFound("{}; a run that goes on reads it again: say where it lies now",
                       Message(adapted.status()));
  }
  SHOAL_RETURN_IF_ERROR(AtItsKey(adapted.status(), job_file, overrides));
  return adapted;
}

std::string DescribeAdapters(const plan::ModelSpec& spec) {
  const plan::ModuleAdapters adapters = plan::AdaptersByModule(spec);
  if (adapters.empty()) {
    return "";
  }
  std::map<int64_t, std::set<std::string>> by_rank;
  for (const auto& [module, adapter] : adapters) {
    by_rank[adapter.rank].insert(module.substr(module.rfind('.') + 1));
  }
  const auto describe = [several = by_rank.size() > 1](std::string* text, const auto& of_rank) {
    *text += several ? fmt::format("rank {}: ", of_rank.first) : "";
    *text += absl::StrJoin(of_rank.second, ", ");
  };
  int64_t trained = 0;
  for (const plan::UnitSpec& unit : plan::BuildUnits(spec)) {
    trained += unit.kind == plan::UnitKind::kAdapter ? unit.count : 0;
  }
  return fmt::format(
      "lora: {} matrices have an adapter ({}), {} parameters beside {} of the model{}",
      adapters.size(), absl::StrJoin(by_rank, "; ", describe), WithThousands(trained),
      WithThousands(plan::ParameterCount(plan::WithoutAdapters(spec))),
      spec.quantize == plan::Quantize::kNf4 ? ", whose blocks are in NF4" : "");
}

absl::StatusOr<std::optional<server::CheckpointInfo>> ChooseCheckpoint(const std::string& directory,
                                                                       const std::string& resume) {
  SHOAL_ASSIGN_OR_RETURN(const auto checkpoints, server::ListCheckpoints(directory));
  if (checkpoints.empty()) {
    return resume == kResumeAuto
               ? absl::StatusOr<std::optional<server::CheckpointInfo>>(std::nullopt)
               : NotFound("--resume: there is no complete checkpoint in {}", directory);
  }
  server::CheckpointInfo chosen = checkpoints.back();
  if (resume != kResumeAuto && resume != kResumeNewest) {
    int64_t step = -1;
    if (!absl::SimpleAtoi(resume, &step)) {
      return InvalidArgument("--resume={}: expected nothing, auto, or a checkpoint's step", resume);
    }
    const auto found = std::ranges::find(checkpoints, step, &server::CheckpointInfo::step);
    if (found == checkpoints.end()) {
      return NotFound("--resume={}: {} has checkpoints of steps {}", step, directory,
                      absl::StrJoin(checkpoints, ", ", [](std::string* out, const auto& one) {
                        absl::StrAppend(out, one.step);
                      }));
    }
    chosen = *found;
  }
  // Every byte: what is damaged is named before anything runs.
  const std::vector<absl::Status> damages = server::VerifyCheckpoint(chosen.path);
  if (damages.empty()) {
    return chosen;
  }
  const auto whole = NewestWhole(checkpoints, chosen.step - 1);
  if (!whole.has_value()) {
    return Annotate(damages.front(), "no checkpoint before it is whole");
  }
  if (resume == kResumeAuto) {
    LogWarning("{}: going on from the newest whole one before it, of step {}",
               Message(damages.front()), whole->step);
    return whole;
  }
  return Annotate(
      damages.front(),
      fmt::format("the newest whole one before it is of step {0}: go on from there with "
                  "--resume={0}",
                  whole->step));
}

absl::Status SettleAsBefore(const std::optional<server::CheckpointInfo>& checkpoint,
                            plan::Job& job) {
  if (!checkpoint.has_value()) {
    return absl::OkStatus();
  }
  std::optional<plan::Job> before;
  SHOAL_RETURN_IF_ERROR(ReadJobOf(*checkpoint, before).status());
  if (!before.has_value()) {
    return absl::OkStatus();
  }
  if (job.plan.pack_groups == 0) {
    job.plan.pack_groups = before->plan.pack_groups;
  }
  if (job.data.date.empty()) {
    job.data.date = before->data.date;
  }
  if (job.train.objective == plan::Objective::kDpo &&
      job.preference.reference == plan::Reference::kAuto && job.preference.has_reference() &&
      before->preference.has_reference()) {
    job.preference.reference = before->preference.precomputes() ? plan::Reference::kPrecompute
                                                                : plan::Reference::kAdapterOff;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> CheckResumedJob(const server::CheckpointInfo& checkpoint,
                                                         const plan::Job& job, bool accept) {
  std::optional<plan::Job> before;
  SHOAL_ASSIGN_OR_RETURN(const std::string other, ReadJobOf(checkpoint, before));
  if (!before.has_value()) {
    return std::vector<std::string>{"cannot compare with the checkpoint's job: " + other};
  }
  plan::Job now = job;
  if (now.train.epochs > 0) {  // the checkpoint has the steps that they were
    now.train.epochs = before->train.epochs;
    now.train.steps = before->train.steps;
  }
  std::vector<std::string> lines;
  std::vector<std::string> refused;
  std::vector<std::string> of_adapters;
  for (const plan::JobDifference& difference : plan::Differences(*before, now)) {
    const auto shown = [](const std::string& value) { return value.empty() ? "none" : value; };
    const std::string values = fmt::format("{} in the checkpoint's job, {} now",
                                           shown(difference.first), shown(difference.second));
    lines.push_back(fmt::format("{}: {}", difference.key, values));
    // What is not trained on changes nothing of what is, unless it is a part of the same samples.
    const bool of_data =
        difference.key.starts_with("data.") && (!difference.key.starts_with("data.validation.") ||
                                                difference.key == "data.validation.fraction");
    if (difference.key == "train.optimizer" && !accept &&
        plan::MomentsOf(now.train.optimizer).arrays >
            plan::MomentsOf(before->train.optimizer).arrays) {
      return FailedPrecondition(
          "--resume from {} with train.optimizer ({}): the checkpoint has no second moments, which "
          "would begin at 0; take this value back, or say --accept-changes",
          checkpoint.path, values);
    }
    if (of_data || difference.key == "train.objective" ||
        difference.key == "train.minibatch_samples" || difference.key == "plan.pack_groups") {
      refused.push_back(fmt::format("{} ({})", difference.key, values));
    }
    // Their folder may lie elsewhere now.
    const bool elsewhere =
        difference.key == "lora.from" && !difference.first.empty() && !difference.second.empty();
    const bool of_model = difference.key == "service.frozen" ||
                          (difference.key.starts_with("lora.") && difference.key != "lora.dropout");
    if (of_model && !elsewhere) {
      of_adapters.push_back(fmt::format("{} ({})", difference.key, values));
    }
  }
  if (!of_adapters.empty()) {
    return FailedPrecondition(
        "--resume from {} goes on with the adapters that are there: {}; take these values back",
        checkpoint.path, absl::StrJoin(of_adapters, ", "));
  }
  if (!refused.empty() && !accept) {
    return FailedPrecondition(
        "--resume from {} would go on with other packs of samples: {}; take these values back, or "
        "say --accept-changes",
        checkpoint.path, absl::StrJoin(refused, ", "));
  }
  return lines;
}

absl::Status CheckDetach(const plan::Job& job, const std::string& job_file,
                         const std::vector<std::string>& overrides) {
  if (job.cluster.local) {
    return AtKey(InvalidArgument("--detach needs a cluster that stays (cluster.coordinator): the "
                                 "processes of a local one end with this command"),
                 "cluster", job_file, overrides);
  }
  if (!job.log.command.empty()) {
    return AtKey(
        InvalidArgument("shoal train runs it beside a job that it follows; take it out, or "
                        "leave --detach out"),
        "log.command", job_file, overrides);
  }
  return absl::OkStatus();
}

std::vector<std::string> DataWarnings(const plan::Job& job, const plan::ModelSpec& spec,
                                      const worker::PrepareSummary& data) {
  std::vector<std::string> warnings;
  if (spec.max_positions > 0 && data.longest > spec.max_positions) {
    warnings.push_back(fmt::format(
        "the longest sample has {} tokens, and the model was made for {} positions: set "
        "data.max_sequence_tokens: {} and data.oversize: skip or truncate",
        data.longest, spec.max_positions, spec.max_positions));
  }
  if (job.train.minibatch_samples > data.samples) {
    warnings.push_back(fmt::format(
        "train.minibatch_samples is {}, and there are {} samples: each step goes over the data "
        "about {:.1f} times",
        job.train.minibatch_samples, data.samples,
        static_cast<double>(job.train.minibatch_samples) / static_cast<double>(data.samples)));
  }
  return warnings;
}

absl::StatusOr<std::string> CheckRoom(const plan::Job& job, const plan::ModelSpec& spec,
                                      bool overwrite) {
  const std::string& directory = job.checkpoint.directory;
  std::error_code error;
  const fs::space_info space = fs::space(directory, error);
  if (error) {
    return ErrnoToStatus(error.value(), "cannot see how much room is in " + directory);
  }
  const auto bytes_of = [](const std::vector<server::CheckpointInfo>& checkpoints) {
    int64_t bytes = 0;
    for (const server::CheckpointInfo& checkpoint : checkpoints) {
      bytes += checkpoint.bytes;
    }
    return bytes;
  };
  SHOAL_ASSIGN_OR_RETURN(const auto complete, server::ListCheckpoints(directory));
  SHOAL_ASSIGN_OR_RETURN(const auto unfinished, server::UnfinishedCheckpoints(directory));
  const int64_t theirs = bytes_of(complete);
  int64_t one = 0;
  for (const plan::UnitSpec& unit : plan::JobUnits(spec, job.train)) {
    const int64_t count = unit.from_files ? 0 : unit.count;
    one += plan::PartitionSpec{.count = count, .frozen = unit.frozen, .moments = unit.moments}
               .moved_bytes();
  }
  // The run removes what an earlier one has not completed.
  const int64_t available = static_cast<int64_t>(space.available) + bytes_of(unfinished);
  if (available + (overwrite ? theirs : 0) < one) {
    return ResourceExhausted(
        "{}: a checkpoint needs {}, and {} are available: make room, or name another "
        "checkpoint.directory",
        directory, FormatBytes(one), FormatBytes(available));
  }
  if (const int64_t all = (job.checkpoint.keep + 1) * one; available + theirs < all) {
    return fmt::format(
        "{}: {} checkpoints (checkpoint.keep and the next) need {}, and {} are "
        "available: make room, or lower checkpoint.keep",
        directory, job.checkpoint.keep + 1, FormatBytes(all), FormatBytes(available + theirs));
  }
  return std::string();
}

absl::Status CheckEmpty(const std::string& directory) {
  SHOAL_ASSIGN_OR_RETURN(const auto newest, server::NewestCheckpoint(directory));
  if (!newest.has_value()) {
    return absl::OkStatus();
  }
  return FailedPrecondition(
      "{} holds the checkpoint of step {}: go on from it with --resume, start over with "
      "--overwrite, or name another checkpoint.directory",
      directory, newest->step);
}

absl::Status CheckNotOvertaken(const std::string& directory,
                               const std::optional<server::CheckpointInfo>& found) {
  SHOAL_ASSIGN_OR_RETURN(const auto newest, server::NewestCheckpoint(directory));
  if (!newest.has_value() || (found.has_value() && newest->step <= found->step)) {
    return absl::OkStatus();
  }
  return Aborted(
      "another run has completed {} meanwhile: start again, which goes on from it; where that run "
      "goes on, stop it first (shoal stop)",
      newest->path);
}

void RemoveUnfinishedFiles(const std::string& directory) {
  std::error_code ends;  // the walk, whose own increment would throw
  std::error_code ignored;
  for (fs::directory_iterator entry(directory, ends); !ends && entry != fs::directory_iterator();
       entry.increment(ends)) {
    if (entry->path().extension() == ".tmp") {
      fs::remove(entry->path(), ignored);
    }
  }
}

absl::StatusOr<std::vector<int>> CheckGpus(const plan::Job& job) {
  const bool of_workers = job.train.device == plan::DeviceKind::kCuda;
  const bool of_servers = job.service.memory == plan::PartitionMemory::kCuda;
  if (!job.cluster.local || (!of_workers && !of_servers)) {
    return std::vector<int>();
  }
  SHOAL_ASSIGN_OR_RETURN(const gpu::GpuDescriptions found, worker::FindGpus());
  const std::vector<int> gpus = worker::UsableGpus();
  if (gpus.empty()) {
    return FailedPrecondition(
        "{} cuda: none of this machine's {} GPUs can be computed on; `shoal doctor` says why",
        of_workers ? "train.device" : "service.memory", found.gpus.size());
  }
  return of_workers ? gpus : std::vector<int>();
}

absl::StatusOr<plan::MemoryPlan> CheckMemory(const plan::ModelSpec& spec, const plan::Job& job,
                                             int64_t available_bytes,
                                             std::span<const plan::StageNeeds> stages) {
  return plan::PlanMemory(spec, job, static_cast<int>(job.cluster.servers),
                          static_cast<int>(job.cluster.workers), {.machine_bytes = available_bytes},
                          stages);
}

}  // namespace shoal::cli

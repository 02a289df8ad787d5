#include "cli/run/preflight.h"

#include <filesystem>

#include "core/base/bytes.h"
#include "core/base/file.h"
#include "core/base/status.h"
#include "core/model/huggingface/hf_model.h"
#include "core/plan/schedule/builders/choice.h"
#include "server/checkpoint/checkpoint.h"
#include "worker/backend/open/open_device.h"
#include "worker/model/transformer.h"

namespace shoal::cli {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaximumJobFile = 1 * kMiB;

absl::Status RemoveEarlierRun(const std::string& directory) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") || name == "huggingface") {
      std::error_code failed;
      fs::remove_all(entry.path(), failed);
      if (failed) {
        return PermissionDenied("{}: {}", entry.path().string(), failed.message());
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<plan::Job> ParseJobFile(const std::string& job_file,
                                       const std::vector<std::string>& overrides) {
  SHOAL_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(job_file, kMaximumJobFile));
  std::error_code error;
  SHOAL_ASSIGN_OR_RETURN(
      plan::Job job, plan::ParseJob(yaml, job_file, overrides, fs::current_path(error).string()));
  // Known to a layer above the one that reads jobs.
  if (const std::string& schedule = job.cluster.pipeline.schedule; schedule != "auto") {
    SHOAL_RETURN_IF_ERROR(Annotate(plan::ParseScheduleName(schedule).status(),
                                   job_file + ": cluster.pipeline.schedule"));
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

absl::Status CheckCluster(const plan::Job& job, const std::string& job_file) {
  if (job.cluster.local || !job.cluster.coordinator.empty()) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      "{}: cluster.servers and cluster.workers go with cluster.coordinator; to start processes on "
      "this machine say cluster.local.servers and cluster.local.workers",
      job_file);
}

absl::StatusOr<plan::ModelSpec> CheckModel(const plan::Job& job) {
  const auto model = formats::HfModel::Open(job.model);
  if (!model.ok()) {
    return Annotate(model.status(), "model");
  }
  return (*model)->spec();
}

absl::Status CheckCheckpointDirectory(const std::string& directory,
                                      const CheckpointChoice& choice) {
  if (choice.overwrite) {
    SHOAL_RETURN_IF_ERROR(RemoveEarlierRun(directory));
  }
  SHOAL_ASSIGN_OR_RETURN(const auto newest, server::NewestCheckpoint(directory));
  if (choice.resume && !newest.has_value()) {
    return NotFound("--resume: there is no complete checkpoint in {}", directory);
  }
  if (!choice.resume && newest.has_value()) {
    return FailedPrecondition(
        "{} holds the checkpoint of step {}: go on from it with --resume, start over with "
        "--overwrite, or name another "
        "checkpoint.directory",
        directory, newest->step);
  }
  if (choice.resume) {
    // Header and sizes of every file: a damaged one is named before anything runs.
    SHOAL_RETURN_IF_ERROR(server::Checkpoint::Open(newest->path).status());
  }
  return CreateDirectories(directory);
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

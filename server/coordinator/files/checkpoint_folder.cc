#include "server/coordinator/files/checkpoint_folder.h"

#include <algorithm>
#include <set>
#include <utility>

#include "core/base/clock.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/coordinator/record/run_record.h"

namespace shoal::server {
namespace {

std::optional<proto::ValidationEvent> EventOf(const std::optional<ValidationResult>& result) {
  if (!result.has_value()) {
    return std::nullopt;
  }
  proto::ValidationEvent event;
  event.set_step(result->step);
  event.set_loss(result->loss);
  event.set_best_step(result->best_step);
  event.set_best_loss(result->best_loss);
  event.set_since_best(result->since_best);
  return event;
}

std::optional<ValidationResult> ResultOf(const std::optional<proto::ValidationEvent>& event) {
  if (!event.has_value()) {
    return std::nullopt;
  }
  return ValidationResult{.step = event->step(),
                          .loss = event->loss(),
                          .best_step = event->best_step(),
                          .best_loss = event->best_loss(),
                          .since_best = event->since_best()};
}

proto::GradientNorms NormsOf(const NormsSoFar& norms) {
  proto::GradientNorms message;
  message.set_mean(norms.mean);
  message.set_steps(norms.steps);
  message.set_skipped_in_a_row(norms.skipped_in_a_row);
  return message;
}

// CheckpointFiles over server/checkpoint.
class CheckpointFolder final : public CheckpointFiles {
 public:
  CheckpointFolder(plan::Job job, plan::ModelSpec spec, formats::SpecialTokens special,
                   std::vector<formats::ModelFile> files)
      : job_(std::move(job)), spec_(std::move(spec)), special_(special), files_(std::move(files)) {}

  absl::StatusOr<std::optional<CompleteCheckpoint>> Newest() override {
    SHOAL_ASSIGN_OR_RETURN(const std::optional<CheckpointInfo> newest,
                           NewestCheckpoint(job_.checkpoint.directory));
    if (!newest.has_value()) {
      return std::nullopt;
    }
    SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                           Checkpoint::Open(newest->path));
    const Manifest& manifest = checkpoint->manifest();
    if (manifest.spec.from_files != spec_.from_files) {
      return InvalidArgument(
          "{} has {}: say service.frozen: {}, as its job.yaml does, or name another "
          "checkpoint.directory",
          newest->path,
          spec_.from_files ? "the model beside adapters" : "adapters without their model",
          spec_.from_files ? "servers" : "files");
    }
    if (plan::ModelSpec of_job = spec_; manifest.spec != of_job) {
      of_job.adapters = manifest.spec.adapters;
      of_job.quantize = manifest.spec.quantize;
      if (manifest.spec == of_job) {
        return InvalidArgument(
            "{} is a checkpoint of other adapters than lora.* of the job says; take back what its "
            "job.yaml says, or name another checkpoint.directory",
            newest->path);
      }
      return InvalidArgument(
          "{} is a checkpoint of another model than the job's; name the right model or another "
          "checkpoint.directory",
          newest->path);
    }
    if (const auto other = std::ranges::mismatch(manifest.base.files, files_);
        other.in1 != manifest.base.files.end() || other.in2 != files_.end()) {
      return FailedPrecondition(
          "{} is of adapters beside another model: {}/{} is not the file that they were trained "
          "with; put that model there, or name another checkpoint.directory",
          newest->path, job_.model, (other.in2 != files_.end() ? *other.in2 : *other.in1).name);
    }
    return CompleteCheckpoint{.step = manifest.step,
                              .path = newest->path,
                              .loss = manifest.loss,
                              .validation = EventOf(manifest.validation),
                              .norms = NormsOf(manifest.norms)};
  }

  absl::StatusOr<std::string> Create(int64_t step) override { return directory_->Begin(step); }

  absl::Status Take(const JobLife& of, bool resume) override {
    SHOAL_ASSIGN_OR_RETURN(directory_, CheckpointDirectory::Take(job_.checkpoint.directory, of));
    resume_ = resume;
    return absl::OkStatus();
  }

  absl::Status CheckNewest(const JobLife& of) override {
    return CheckpointDirectory::CheckNewest(job_.checkpoint.directory, of);
  }

  absl::Status Record(const std::string& lines) override {
    SHOAL_RETURN_IF_ERROR(directory_->CheckOwned());
    if (!record_.has_value()) {
      SHOAL_ASSIGN_OR_RETURN(record_,
                             RunRecord::Open(job_.checkpoint.directory, resume_, plan::ToYaml(job_),
                                             WallTime(), job_.log.tensorboard));
    }
    return record_->Append(lines);
  }

  absl::StatusOr<int64_t> LastRecorded() override {
    return LastEventNumber(job_.checkpoint.directory);
  }

  absl::Status Discard(int64_t step) override { return directory_->Discard(step); }

  absl::StatusOr<std::string> Finish(const CompleteCheckpoint& checkpoint,
                                     const std::vector<proto::CheckpointShard>& shards) override {
    Manifest manifest = {.step = checkpoint.step,
                         .loss = checkpoint.loss,
                         .validation = ResultOf(checkpoint.validation),
                         .norms = {.mean = checkpoint.norms.mean(),
                                   .steps = checkpoint.norms.steps(),
                                   .skipped_in_a_row = checkpoint.norms.skipped_in_a_row()},
                         .spec = spec_,
                         .base = spec_.from_files ? BaseModel{job_.model, files_} : BaseModel{},
                         .special = special_};
    for (const proto::CheckpointShard& shard : shards) {
      manifest.shards.push_back(
          {.file = shard.file(),
           .bytes = shard.bytes(),
           .hash = shard.hash(),
           .partitions = {shard.partitions().begin(), shard.partitions().end()}});
    }
    SHOAL_ASSIGN_OR_RETURN(std::string path, directory_->Complete(manifest, plan::ToYaml(job_)));
    // The new one is complete even if old ones cannot be removed.
    std::set<int64_t> kept = {checkpoint.base};
    if (job_.checkpoint.best && manifest.validation.has_value()) {
      kept.insert(manifest.validation->best_step);
    }
    if (const absl::Status pruned = directory_->Prune(job_.checkpoint.keep, kept); !pruned.ok()) {
      LogWarning("old checkpoints remain: {}", Message(pruned));
    }
    if (job_.checkpoint.export_each && !job_.emulate.enabled()) {
      const absl::Status exported = ReplaceExport(path, path + "/huggingface", job_);
      if (!exported.ok()) {
        LogWarning("{} has no model in Hugging Face form: {}", path, Message(exported));
      }
    }
    return path;
  }

  std::optional<std::filesystem::space_info> Room() override {
    std::error_code error;
    const auto room = std::filesystem::space(job_.checkpoint.directory, error);
    return error ? std::nullopt : std::optional(room);
  }

  std::string PathOf(int64_t step) const override {
    return CheckpointPath(job_.checkpoint.directory, step);
  }

  std::string Find(int64_t step) override {
    const std::string path = PathOf(step);
    return IsComplete(path) ? path : "";
  }

  absl::StatusOr<std::string> Export(const std::string& checkpoint) override {
    const std::string folder = job_.checkpoint.directory + "/huggingface";
    SHOAL_RETURN_IF_ERROR(ReplaceExport(checkpoint, folder, job_));
    return folder;
  }

 private:
  const plan::Job job_;
  const plan::ModelSpec spec_;
  const formats::SpecialTokens special_;
  const std::vector<formats::ModelFile> files_;
  std::optional<CheckpointDirectory> directory_;  // once taken
  bool resume_ = false;
  std::optional<RunRecord> record_;  // once there are lines
};

}  // namespace

std::unique_ptr<CheckpointFiles> MakeCheckpointFolder(plan::Job job, plan::ModelSpec spec,
                                                      formats::SpecialTokens special,
                                                      std::vector<formats::ModelFile> files) {
  return std::make_unique<CheckpointFolder>(std::move(job), std::move(spec), special,
                                            std::move(files));
}

}  // namespace shoal::server

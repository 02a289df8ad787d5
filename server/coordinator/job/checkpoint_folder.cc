#include "server/coordinator/job/checkpoint_folder.h"

#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/checkpoint/checkpoint.h"

namespace shoal::server {

CheckpointFolder::CheckpointFolder(plan::Job job, plan::ModelSpec spec,
                                   formats::SpecialTokens special)
    : job_(std::move(job)), spec_(std::move(spec)), special_(special) {}

absl::StatusOr<std::optional<CompleteCheckpoint>> CheckpointFolder::Newest() {
  SHOAL_ASSIGN_OR_RETURN(const std::optional<CheckpointInfo> newest,
                         NewestCheckpoint(job_.checkpoint.directory));
  if (!newest.has_value()) {
    return std::nullopt;
  }
  SHOAL_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(newest->path));
  const Manifest& manifest = checkpoint->manifest();
  if (manifest.spec != spec_) {
    return InvalidArgument(
        "{} is a checkpoint of another model than the job's; name the right model or another "
        "checkpoint.directory",
        newest->path);
  }
  return CompleteCheckpoint{.step = manifest.step, .path = newest->path, .loss = manifest.loss};
}

absl::StatusOr<std::string> CheckpointFolder::Create(int64_t step) {
  return CreateCheckpointFolder(job_.checkpoint.directory, step);
}

absl::Status CheckpointFolder::Discard(int64_t step) {
  return RemoveUnfinishedCheckpoint(job_.checkpoint.directory, step);
}

absl::Status CheckpointFolder::Finish(const CompleteCheckpoint& checkpoint,
                                      const std::vector<proto::CheckpointShard>& shards) {
  Manifest manifest = {
      .step = checkpoint.step, .loss = checkpoint.loss, .spec = spec_, .special = special_};
  for (const proto::CheckpointShard& shard : shards) {
    manifest.shards.push_back(
        {.file = shard.file(),
         .bytes = shard.bytes(),
         .hash = shard.hash(),
         .partitions = {shard.partitions().begin(), shard.partitions().end()}});
  }
  SHOAL_RETURN_IF_ERROR(WriteManifest(checkpoint.path, manifest, plan::ToYaml(job_)));
  // The new one is complete whatever becomes of the old ones.
  if (const absl::Status pruned = PruneCheckpoints(job_.checkpoint.directory, job_.checkpoint.keep);
      !pruned.ok()) {
    LogWarning("old checkpoints remain: {}", Message(pruned));
  }
  return absl::OkStatus();
}

}  // namespace shoal::server

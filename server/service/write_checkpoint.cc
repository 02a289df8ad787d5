// HostedJob::WriteCheckpoint: pins the published version and writes it in the background.
#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/service/hosted_job.h"

namespace shoal::server {

absl::StatusOr<proto::WriteCheckpointReply> HostedJob::WriteCheckpoint(
    const proto::WriteCheckpointRequest& request) {
  std::shared_ptr<CheckpointTask> task;
  SHOAL_RETURN_IF_ERROR(core_->Pin(request, [&]() -> absl::Status {
    SHOAL_ASSIGN_OR_RETURN(task, PinCheckpoint(request));
    return absl::OkStatus();
  }));
  proto::WriteCheckpointReply reply;
  if (request.begin()) {
    return reply;
  }
  // Without the lock: training continues meanwhile.
  const absl::StatusOr<ShardEntry> entry = task->Wait(options_.checkpoint_timeout);
  if (absl::IsNotFound(entry.status())) {  // a folder; a server without the job answers that
    return FailedPrecondition("{}", Message(entry.status()));
  }
  SHOAL_RETURN_IF_ERROR(entry.status());
  proto::CheckpointShard& shard = *reply.add_shards();
  shard.set_file(entry->file);
  shard.set_bytes(entry->bytes);
  shard.set_hash(entry->hash);
  shard.mutable_partitions()->Add(entry->partitions.begin(), entry->partitions.end());
  return reply;
}

absl::StatusOr<std::shared_ptr<CheckpointTask>> HostedJob::PinCheckpoint(
    const proto::WriteCheckpointRequest& request) {
  if (const std::shared_ptr<CheckpointTask> last = NewestCheckpoint();
      last != nullptr && last->given_up()) {
    last->Wait(options_.checkpoint_timeout).IgnoreError();  // for a partition at most
  }
  absl::MutexLock lock(&checkpoint_mutex_);
  if (stopped_) {
    return FailedPrecondition("cannot write a checkpoint: this server is going");
  }
  std::shared_ptr<CheckpointTask>& task = checkpoint_;
  std::optional<PinnedCheckpoint> newest;
  if (task != nullptr) {
    newest = {.version = task->version(),
              .directory = task->directory(),
              .done = task->Done(),
              .kept = task->Kept()};
  }
  SHOAL_ASSIGN_OR_RETURN(const bool pins, PinsCheckpoint(request, newest, store_->version()));
  if (pins) {
    task = std::make_shared<CheckpointTask>(store_.get(), request.server(), request.directory());
  }
  return task;
}

absl::Status HostedJob::CommitAroundCheckpoint(const proto::CommitRequest& request) {
  JobStore& store = *store_;
  const std::shared_ptr<CheckpointTask> task = NewestCheckpoint();
  if (task == nullptr || task->AllWritten()) {
    return Apply(request, store);
  }
  absl::Duration waited;
  SHOAL_RETURN_IF_ERROR(Apply(request, store, [&](size_t partition) {
    const absl::Time start = options_.clock->Now();
    const absl::Status ready = task->WaitUntilWritten(partition);
    waited += options_.clock->Now() - start;
    return ready;
  }));
  metrics_.checkpoint_commit_wait_seconds.Increment(absl::ToDoubleSeconds(waited));
  LogInfo("step {}: commit waited {} for the checkpoint of step {} to be written", request.step(),
          absl::FormatDuration(waited), task->version());
  return absl::OkStatus();
}

std::shared_ptr<CheckpointTask> HostedJob::NewestCheckpoint() const {
  absl::MutexLock lock(&checkpoint_mutex_);
  return checkpoint_;
}

// A commit may hold the commands' lock until a slow disk has written.
void HostedJob::Stop() {
  absl::MutexLock lock(&checkpoint_mutex_);
  stopped_ = true;
  if (checkpoint_ != nullptr) {
    checkpoint_->Cancel();
  }
}

}  // namespace shoal::server

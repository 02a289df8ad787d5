// Checkpoints: written by the servers while training goes on, made complete by the manifest.
#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {

void JobRun::AfterCommit() {
  const int64_t every = job_.job.checkpoint.every_steps;
  const bool last = version_ >= job_.last_step || stop_requested_;  // Finish writes that one
  const bool due = every > 0 && version_ % every == 0 && !last;
  if (!due) {
    OpenStep();
  } else if (checkpoint_in_progress_) {
    // Two at once would hold the memory of two versions at the servers; a disk this slow sets the
    // pace.
    phase_ = Phase::kWaitingForCheckpoint;
    SetState("checkpointing");
  } else {
    phase_ = Phase::kPinning;
    BeginCheckpoint();
  }
}

void JobRun::BeginCheckpoint() {
  checkpoint_in_progress_ = true;
  checkpoint_ = {.step = version_, .loss = last_loss_};
  checkpoint_started_ = environment_.clock.Now();
  environment_.disk([this, step = checkpoint_.step] {
    auto path = job_.checkpoints->Create(step);
    environment_.post([this, path = std::move(path)] { OnCheckpointFolder(path); });
  });
}

void JobRun::OnCheckpointFolder(absl::StatusOr<std::string> path) {
  if (over()) {
    return;
  }
  if (!path.ok()) {
    OnCheckpointDone(path.status());
    return;
  }
  checkpoint_.path = *std::move(path);
  proto::WriteCheckpointRequest request;
  request.set_version(checkpoint_.step);
  request.set_directory(checkpoint_.path);
  request.set_begin(true);
  CallAll(
      &rpc::ParameterServerService::WriteCheckpoint, [request](int) { return request; },
      [this](const std::vector<proto::WriteCheckpointReply>&) { OnPinned(); });
}

void JobRun::OnPinned() {
  proto::WriteCheckpointRequest request;
  request.set_version(checkpoint_.step);
  request.set_directory(checkpoint_.path);
  CallAll(
      &rpc::ParameterServerService::WriteCheckpoint, [request](int) { return request; },
      [this](const std::vector<proto::WriteCheckpointReply>& replies) {
        OnShardsWritten(replies);
      });
  if (phase_ == Phase::kPinning) {
    OpenStep();
  }
}

void JobRun::OnShardsWritten(const std::vector<proto::WriteCheckpointReply>& replies) {
  std::vector<proto::CheckpointShard> shards;
  for (const proto::WriteCheckpointReply& reply : replies) {
    shards.insert(shards.end(), reply.shards().begin(), reply.shards().end());
  }
  environment_.disk([this, checkpoint = checkpoint_, shards = std::move(shards)] {
    const absl::Status status = job_.checkpoints->Finish(checkpoint, shards);
    environment_.post([this, status] { OnCheckpointDone(status); });
  });
}

void JobRun::OnCheckpointDone(const absl::Status& status) {
  if (over()) {
    return;
  }
  checkpoint_in_progress_ = false;
  if (!status.ok()) {
    Fail(fmt::format("the checkpoint of step {} failed: {}", checkpoint_.step, Message(status)));
    return;
  }
  newest_checkpoint_ = checkpoint_;
  const absl::Time now = environment_.clock.Now();
  const double seconds = absl::ToDoubleSeconds(now - checkpoint_started_);
  environment_.metrics.checkpoint_duration.Observe(seconds);
  environment_.metrics.last_checkpoint_timestamp.Set(
      absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  Log(environment_.store.RecordCheckpoint(job_.id,
                                          {.step = checkpoint_.step, .path = checkpoint_.path}));
  LogInfo("checkpoint of step {} is complete: {}", checkpoint_.step, checkpoint_.path);
  proto::JobEvent event;
  event.mutable_checkpoint()->set_step(checkpoint_.step);
  event.mutable_checkpoint()->set_path(checkpoint_.path);
  event.mutable_checkpoint()->set_seconds(seconds);
  Append(std::move(event));
  if (phase_ == Phase::kFinishing) {
    Finish(interrupted_);
  } else if (phase_ == Phase::kWaitingForCheckpoint) {
    SetState("training");
    AfterCommit();
  }
}

}  // namespace shoal::server

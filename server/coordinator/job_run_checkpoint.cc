// Checkpoints: written by the servers while training goes on, made complete by the manifest.
#include "common/logging.h"
#include "common/status.h"
#include "server/coordinator/job_run.h"
#include "server/coordinator/job_run_calls.h"

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
  checkpoint_step_ = version_;
  checkpoint_started_ = environment_.clock.Now();
  environment_.disk([this, step = checkpoint_step_] {
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
  checkpoint_path_ = *std::move(path);
  proto::WriteCheckpointRequest request;
  request.set_version(checkpoint_step_);
  request.set_directory(checkpoint_path_);
  request.set_begin(true);
  CallAll<proto::WriteCheckpointRequest, proto::WriteCheckpointReply>(
      &ServerControl::WriteCheckpoint, [request](int) { return request; },
      [this](const std::vector<proto::WriteCheckpointReply>&) { OnPinned(); });
}

void JobRun::OnPinned() {
  proto::WriteCheckpointRequest request;
  request.set_version(checkpoint_step_);
  request.set_directory(checkpoint_path_);
  CallAll<proto::WriteCheckpointRequest, proto::WriteCheckpointReply>(
      &ServerControl::WriteCheckpoint, [request](int) { return request; },
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
  environment_.disk(
      [this, step = checkpoint_step_, path = checkpoint_path_, shards = std::move(shards)] {
        const absl::Status status = job_.checkpoints->Finish(step, path, shards);
        environment_.post([this, status] { OnCheckpointDone(status); });
      });
}

void JobRun::OnCheckpointDone(const absl::Status& status) {
  if (over()) {
    return;
  }
  checkpoint_in_progress_ = false;
  if (!status.ok()) {
    Fail(fmt::format("the checkpoint of step {} failed: {}", checkpoint_step_, Message(status)));
    return;
  }
  newest_checkpoint_ = CompleteCheckpoint{.step = checkpoint_step_, .path = checkpoint_path_};
  const absl::Time now = environment_.clock.Now();
  const double seconds = absl::ToDoubleSeconds(now - checkpoint_started_);
  environment_.metrics.checkpoint_duration.Observe(seconds);
  environment_.metrics.last_checkpoint_timestamp.Set(
      absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  Log(environment_.store.RecordCheckpoint({.step = checkpoint_step_, .path = checkpoint_path_}));
  LogInfo("checkpoint of step {} is complete: {}", checkpoint_step_, checkpoint_path_);
  proto::JobEvent event;
  event.mutable_checkpoint()->set_step(checkpoint_step_);
  event.mutable_checkpoint()->set_path(checkpoint_path_);
  event.mutable_checkpoint()->set_seconds(seconds);
  environment_.events.Append(std::move(event));
  if (phase_ == Phase::kFinishing) {
    Finish(interrupted_);
  } else if (phase_ == Phase::kWaitingForCheckpoint) {
    SetState("training");
    AfterCommit();
  }
}

}  // namespace shoal::server

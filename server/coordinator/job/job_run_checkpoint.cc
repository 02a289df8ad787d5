// Checkpoints: written by the servers while training goes on, made complete by the manifest.
#include "core/base/logging.h"
#include "core/base/status.h"
#include "server/coordinator/job/call_all.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {
namespace {

// Weights are safe at the servers meanwhile, so a disk that is full for a while costs nothing. One
// that stays full is worth an end: what is trained then is lost with the first process.
constexpr int kFailedCheckpointsInARow = 3;
constexpr absl::Duration kBetweenTries = absl::Seconds(60);
// Where nothing is left to do but that.
constexpr absl::Duration kBetweenLastTries = absl::Seconds(10);

std::function<proto::WriteCheckpointRequest(int)> OfServer(proto::WriteCheckpointRequest request) {
  return [request](int server) mutable {
    request.set_server(server);
    return request;
  };
}

}  // namespace

bool JobRun::IsSaved() const {
  return newest_checkpoint_.has_value() && newest_checkpoint_->step == version_;
}

bool JobRun::CheckpointDue() const {
  const plan::CheckpointOptions& options = job_.job.checkpoint;
  if (AtEnd() || stop_requested_) {
    return false;  // Finish writes that one
  }
  // As a run finds it that takes over; with servers that have yet to begin by the map.
  if (IsSaved() || told_generation_ != job_.shard_map.generation) {
    return false;
  }
  const absl::Time now = environment_.clock.Now();
  return (options.every_steps > 0 && version_ > 0 && version_ % options.every_steps == 0) ||
         (options.every_seconds > 0 &&
          now - checkpoint_started_ >= absl::Seconds(options.every_seconds)) ||
         (options.best && validation_.has_value() && validation_->best_step() == version_) ||
         now >= checkpoint_again_;
}

void JobRun::AfterCommit() {
  if (!replicas_.lost.empty()) {
    checkpoint_again_ = CheckpointDue() ? environment_.clock.Now() : checkpoint_again_;
    OpenStep();
    return;
  }
  if (ValidationDue(version_) || !CheckpointDue()) {  // one says what the validation has brought
    OpenStep();
  } else if (checkpoint_in_progress_) {
    // Two at once would hold the memory of two versions at the servers; a disk this slow sets the
    // pace.
    AwaitCheckpoint();
  } else {
    phase_ = Phase::kPinning;
    BeginCheckpoint();
  }
}

void JobRun::AwaitCheckpoint() {
  phase_ = Phase::kWaitingForCheckpoint;
  SetState("checkpointing");
}

void JobRun::BeginCheckpoint() {
  checkpoint_in_progress_ = true;
  checkpoint_again_ = absl::InfiniteFuture();
  checkpoint_ = {.step = version_, .loss = last_loss_, .validation = validation_, .norms = norms_};
  // Of version 0 they are in the model.
  checkpoint_.base = job_.pushes.freezes() && loaded_version_ > 0 ? loaded_version_ : kNoStep;
  checkpoint_started_ = environment_.clock.Now();
  environment_.disk([this, step = checkpoint_.step] {
    auto path = job_.checkpoints->Create(step);
    environment_.post([this, path = std::move(path)] { OnCheckpointFolder(path); });
  });
}

void JobRun::OnCheckpointFolder(absl::StatusOr<std::string> path) {
  if (closed()) {
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
      &rpc::ParameterServerService::WriteCheckpoint, OfServer(request),
      [this](const std::vector<proto::WriteCheckpointReply>&) { OnPinned(); },
      [this](int server, const absl::Status& status) { OnShardFailed(server, status); });
}

void JobRun::OnPinned() {
  environment_.reached("checkpoint");
  proto::WriteCheckpointRequest request;
  request.set_version(checkpoint_.step);
  request.set_directory(checkpoint_.path);
  CallAll(
      &rpc::ParameterServerService::WriteCheckpoint, OfServer(request),
      [this](const std::vector<proto::WriteCheckpointReply>& replies) { OnShardsWritten(replies); },
      [this](int server, const absl::Status& status) { OnShardFailed(server, status); });
  if (phase_ == Phase::kPinning) {
    OpenStep();
  }
}

void JobRun::OnShardFailed(int server, const absl::Status& status) {
  OnCheckpointDone(Annotate(status, NameOf(servers_[static_cast<size_t>(server)])));
}

void JobRun::OnShardsWritten(const std::vector<proto::WriteCheckpointReply>& replies) {
  std::vector<proto::CheckpointShard> shards;
  checkpoint_bytes_ = 0;
  for (const proto::WriteCheckpointReply& reply : replies) {
    shards.insert(shards.end(), reply.shards().begin(), reply.shards().end());
    for (const proto::CheckpointShard& shard : reply.shards()) {
      checkpoint_bytes_ += shard.bytes();
    }
  }
  environment_.disk([this, checkpoint = checkpoint_, shards = std::move(shards)] {
    auto path = job_.checkpoints->Finish(checkpoint, shards);
    environment_.post([this, path = std::move(path), room = job_.checkpoints->Room()] {
      environment_.metrics.OnRoom(room);
      OnCheckpointDone(path);
    });
  });
}

void JobRun::OnCheckpointDone(const absl::StatusOr<std::string>& path) {
  if (closed()) {
    if (path.ok() && restarts_) {
      TakeCheckpoint(*path);  // that is where the next run begins
    }
    return;
  }
  checkpoint_in_progress_ = false;
  if (!path.ok()) {
    OnCheckpointFailed(path.status());
    return;
  }
  TakeCheckpoint(*path);
  failed_checkpoints_ = 0;
  const absl::Time now = environment_.clock.Now();
  const double seconds = absl::ToDoubleSeconds(now - checkpoint_started_);
  environment_.metrics.OnCheckpoint(
      {.seconds = seconds,
       .bytes = checkpoint_bytes_,
       .unix_seconds = absl::ToDoubleSeconds(now - absl::UnixEpoch())});
  proto::JobEvent event;
  event.mutable_checkpoint()->set_step(checkpoint_.step);
  event.mutable_checkpoint()->set_path(checkpoint_.path);
  event.mutable_checkpoint()->set_seconds(seconds);
  Append(std::move(event));
  GoOnAfterCheckpoint();
}

void JobRun::TakeCheckpoint(const std::string& path) {
  checkpoint_.path = path;
  newest_checkpoint_ = checkpoint_;
  Log(environment_.store.RecordCheckpoint(job_.id, {.step = checkpoint_.step, .path = path}));
  LogInfo("checkpoint of step {} is complete: {}", checkpoint_.step, path);
}

void JobRun::GoOnAfterCheckpoint() {
  if (phase_ == Phase::kFinishing) {
    Finish(interrupted_);
  } else if (phase_ == Phase::kWaitingForCheckpoint) {
    SetState("training");
    checkpoint_.step == version_ ? OpenStep() : AfterCommit();
  } else if (phase_ == Phase::kPinning) {
    OpenStep();  // it failed before servers had pinned the version
  }
}

void JobRun::OnCheckpointFailed(const absl::Status& status) {
  if (EndsBySuccessor(status)) {
    return;
  }
  environment_.disk([this, step = checkpoint_.step] {
    if (const absl::Status gone = job_.checkpoints->Discard(step); !gone.ok()) {
      LogWarning("what was written of the checkpoint of step {} stays: {}", step, Message(gone));
    }
    environment_.post(
        [this, room = job_.checkpoints->Room()] { environment_.metrics.OnRoom(room); });
  });
  environment_.metrics.checkpoint_failures.Increment();
  const std::string why =
      fmt::format("the checkpoint of step {} failed: {}", checkpoint_.step, Message(status));
  if (absl::IsAlreadyExists(status)) {
    Fail(why);  // The folder is another job's.
    return;
  }
  if (failure_.has_value()) {
    EndBy({.message = fmt::format("{}; {}", failure_->message, why),
           .non_finite = failure_->non_finite,
           .by_loss = failure_->by_loss,
           .asked = failure_->asked});
    return;
  }
  failed_checkpoints_ += IsLoss(status) ? 0 : 1;  // of which a disk knows nothing
  if (failed_checkpoints_ >= kFailedCheckpointsInARow) {
    Fail(why + fmt::format(" (for the {}rd time in a row)", kFailedCheckpointsInARow));
    return;
  }
  LogWarning("{}; it is tried again", why);
  proto::JobEvent event;
  event.mutable_checkpoint()->set_step(checkpoint_.step);
  event.mutable_checkpoint()->set_error(std::string(Message(status)));
  Append(std::move(event));
  if (phase_ == Phase::kFinishing) {
    checkpoint_again_ = environment_.clock.Now() + kBetweenLastTries;
    return;
  }
  checkpoint_again_ = environment_.clock.Now() + kBetweenTries;
  GoOnAfterCheckpoint();
}

}  // namespace shoal::server

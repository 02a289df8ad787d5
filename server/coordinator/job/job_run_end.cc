// The end of a job: by a stop, a failure or its last step; then servers let go of it.
#include <algorithm>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {
namespace {

constexpr absl::Duration kBetweenReleases = absl::Seconds(1);
// For servers and disk to say that a later life has taken over.
constexpr absl::Duration kQuestionPatience = absl::Seconds(2);

}  // namespace

void JobRun::Stop(const std::string& reason, bool for_good) {
  if (restarts_ && for_good) {
    restarts_ = false;
    interrupted_ = true;
    // Later steps are lost with the member.
    version_ = newest_checkpoint_.has_value() ? newest_checkpoint_->step : 0;
    last_loss_ = newest_checkpoint_.has_value() ? newest_checkpoint_->loss : 0;
    norms_ = newest_checkpoint_.has_value() ? newest_checkpoint_->norms : proto::GradientNorms();
    validation_ = newest_checkpoint_.has_value() ? newest_checkpoint_->validation : std::nullopt;
    TellEnd();
    return;
  }
  stopped_ = true;
  if (closed() || stop_requested_) {
    return;
  }
  suspended_ = !for_good;
  if (for_good) {
    Log(environment_.store.StopJob(job_.id, reason));
  }
  LogInfo("stopping after step {}: {}", version_, reason);
  Record({{"event", "stop"}, {"step", version_}, {"reason", reason}});
  EndAfterCommit();
}

void JobRun::EndAfterCommit() {
  stop_requested_ = true;
  switch (phase_) {
    case Phase::kWaiting:
    case Phase::kConfiguring:
      interrupted_ = true;
      Complete();
      break;
    case Phase::kShort:
    case Phase::kPlanning:
    case Phase::kBeginning:
    case Phase::kRunning:
      // Nothing of the attempt counts yet. Servers keep what was pushed until the next attempt,
      // which never comes.
      Finish(/*interrupted=*/true);
      break;
    default:
      stop_requested_ = !SHOAL_PLANTED("stop-forgotten");
      break;  // The commit or checkpoint under way ends, then OpenStep finds stop_requested_.
  }
}

void JobRun::SaveAndFail(const std::string& message, bool non_finite) {
  LogError("{}; the job ends with a checkpoint of its last commit", message);
  stop_requested_ = true;
  if (!failure_.has_value()) {  // else a loss came first
    failure_ = {message, non_finite};
  }
  Finish(/*interrupted=*/true);
}

void JobRun::Fail(const std::string& message, bool non_finite) {
  if (closed()) {
    return;
  }
  phase_ = Phase::kOver;
  AskForSuccessor([this, message, non_finite] {
    TellFailure(message, non_finite);
    Change();
    SetLogContext("");
    ReleaseMembers();
  });
}

void JobRun::TellFailure(const std::string& message, bool non_finite) {
  LogError("{} failed: {}", job_.id, message);
  SetState("failed");
  proto::JobEvent event;
  event.mutable_failed()->set_message(message);
  event.mutable_failed()->set_non_finite(non_finite);
  event.mutable_failed()->set_step(step_);
  Append(std::move(event));
  Log(environment_.store.EndJob(job_.id, "failed: " + message));
}

void JobRun::FailByLoss(const std::string& message, bool asked) {
  if (closed()) {
    return;
  }
  // Who upgrades one server after the other leaves no time for a step between.
  const int64_t more = asked ? 0 : 1;
  const int64_t restarts =
      version_ > first_version_ ? 1 : std::max<int64_t>(1, job_.restarts + more);
  if (!environment_.stays || stopped_ || restarts > job_.job.queue.max_restarts) {
    Fail(message + Remedy());
    return;
  }
  LogWarning("{}: {}", job_.id, message);
  phase_ = Phase::kOver;
  restarts_ = true;
  job_.restarts = restarts;
  const int64_t stay =
      std::ssize(servers_) -
      std::ranges::count_if(departures_, [](const auto& server) { return server.second.drained; });
  job_.servers = std::max(stay, std::min(job_.job.cluster.min_servers, std::ssize(servers_)));
  job_.patience = absl::Seconds(job_.job.cluster.recovery_timeout_seconds);
  AskForSuccessor([this, message] {
    if (restarts_) {  // else it was stopped meanwhile
      SetState(fmt::format("{}: goes on from {} when as many are there again", message,
                           newest_checkpoint_.has_value()
                               ? fmt::format("the checkpoint of step {}", newest_checkpoint_->step)
                               : "the model"));
      TellState();
    }
    Change();
    SetLogContext("");
    ReleaseMembers();
  });
}

// Where members have gone over to a later life, this one sees their leases end, and followers would
// believe that the job has failed. So servers are asked first, and who has the checkpoint folder.
// Who does not answer soon knows of none.
void JobRun::AskForSuccessor(std::function<void()> then) {
  if (!environment_.durable) {
    then();
    return;
  }
  question_ = {.unanswered = 1,
               .until = environment_.clock.Now() + kQuestionPatience,
               .then = std::move(then)};
  for (size_t server = 0; control_ != nullptr && server < servers_.size(); ++server) {
    const bool reachable = std::ranges::find(unreachable_, servers_[server].incarnation,
                                             &Member::incarnation) == unreachable_.end();
    if (reachable) {
      ++question_->unanswered;
      AskWhereItIs(server, [this](const absl::StatusOr<proto::TakeOverReply>& reply) {
        OnSuccessorAnswer(reply.status());
      });
    }
  }
  environment_.disk([this, life = JobLife{job_.id, environment_.term}] {
    const absl::Status newest = job_.checkpoints->CheckNewest(life);
    environment_.post([this, newest] { OnSuccessorAnswer(newest); });
  });
}

void JobRun::OnSuccessorAnswer(const absl::Status& status) {
  if (!EndsBySuccessor(status) && question_.has_value() && --question_->unanswered == 0) {
    StopAsking(question_->until);
  }
}

void JobRun::StopAsking(absl::Time now) {
  if (now >= question_->until) {
    std::exchange(question_, std::nullopt)->then();
  }
}

void JobRun::EndBy(const Failure& failure) {
  failure.by_loss ? FailByLoss(failure.message, failure.asked)
                  : Fail(failure.message + Remedy(), failure.non_finite);
}

void JobRun::Finish(bool interrupted) {
  phase_ = Phase::kFinishing;
  interrupted_ = interrupted;
  if (checkpoint_in_progress_) {
    SetState("checkpointing");
    return;  // OnCheckpointDone comes back here
  }
  checkpoint_again_ = absl::InfiniteFuture();  // Tick may come before servers have answered
  if (version_ > 0 && !IsSaved()) {
    if (!replicas_.lost.empty()) {
      Recover();
      return;
    }
    SetState("checkpointing");
    if (told_generation_ != job_.shard_map.generation) {  // who is to write what they do not know
      NumberStep();
      BeginAtServers([this] {
        OnMapTold();
        Finish(interrupted_);
      });
      return;
    }
    BeginCheckpoint();
    return;
  }
  Complete();
}

// Who follows the job exports its model; of one that nobody follows the coordinator does.
bool JobRun::MustExport() const {
  return job_.request.detached() && job_.job.checkpoint.export_huggingface &&
         !job_.job.emulate.enabled() && !interrupted_ && newest_checkpoint_.has_value();
}

// That of the lowest validation loss, where one is kept and it is there; else the newest.
const std::string& JobRun::ExportedCheckpoint() const {
  return best_checkpoint_.empty() ? newest_checkpoint_->path : best_checkpoint_;
}

void JobRun::Export() {
  SetState("exporting");
  environment_.disk([this, checkpoint = ExportedCheckpoint()] {
    const auto folder = job_.checkpoints->Export(checkpoint);
    environment_.post([this, folder] { OnExported(folder); });
  });
}

void JobRun::OnExported(const absl::StatusOr<std::string>& folder) {
  if (closed()) {
    return;
  }
  if (!folder.ok()) {
    Fail(
        fmt::format("the job is done, but its model cannot be exported: {}; shoal checkpoint "
                    "export {} --output FOLDER does that",
                    Message(folder.status()), ExportedCheckpoint()));
    return;
  }
  LogInfo("the model is in {}", *folder);
  End();
}

void JobRun::Complete() {
  if (failure_.has_value() && interrupted_) {  // else all was done when it came
    EndBy(*failure_);
    return;
  }
  if (job_.job.checkpoint.best && validation_.has_value() && !interrupted_) {
    environment_.disk([this, step = validation_->best_step()] {
      environment_.post([this, path = job_.checkpoints->Find(step)] { OnBestFound(path); });
    });
    return;
  }
  MustExport() ? Export() : End();
}

void JobRun::OnBestFound(const std::string& path) {
  if (closed()) {
    return;
  }
  best_checkpoint_ = path;
  MustExport() ? Export() : End();
}

void JobRun::End() {
  phase_ = Phase::kOver;
  Change();
  environment_.reached("end");
  TellEnd();
  SetLogContext("");
  ReleaseMembers();
}

void JobRun::TellEnd() {
  SetState(interrupted_ ? "interrupted" : "done");
  proto::JobEvent event;
  proto::DoneEvent& done = *event.mutable_done();
  done.set_step(version_);
  done.set_loss(last_loss_);
  done.set_checkpoint(newest_checkpoint_.has_value() ? newest_checkpoint_->path : "");
  done.set_best_checkpoint(best_checkpoint_);
  done.set_interrupted(interrupted_);
  done.set_early(!interrupted_ && version_ < job_.last_step);
  if (validation_.has_value()) {
    *done.mutable_validation() = *validation_;
  }
  Append(std::move(event));
  LogInfo("{} is {} at step {} of {}", job_.id, state_, version_, job_.last_step);
  if (!suspended_ || !interrupted_) {
    Log(environment_.store.EndJob(job_.id, state_));
  }
}

void JobRun::BeOver(const std::string& outcome, std::vector<Member> servers) {
  SHOAL_CHECK(phase_ == Phase::kWaiting);
  phase_ = Phase::kOver;
  state_ = outcome.substr(0, outcome.find(':'));
  state_since_ = environment_.clock.Now();
  version_ = std::max(version_, LastTold());
  if (!servers.empty()) {
    SetServers(std::move(servers));
  }
  ReleaseMembers();
}

void JobRun::ReleaseMembers() {
  if (!environment_.stays) {
    return;  // members end with the coordinator
  }
  ReleaseJoiners();
  SetBytesLeft(0);
  for (size_t server = 0; server < servers_.size(); ++server) {
    if (!gone_.contains(servers_[server].incarnation)) {
      Release(server);
    }
  }
  if (holders_.empty()) {
    Clear();
  }
}

// Until it has answered, the server may hold the job, and takes no other.
void JobRun::Release(size_t server) {
  holders_[server] = absl::InfiniteFuture();
  proto::ReleaseJobRequest request;
  request.set_job_id(job_.id);
  request.set_term(environment_.term);
  request.set_run(job_.run);
  control_->Call(
      static_cast<int>(server), &rpc::ParameterServerService::ReleaseJob, request,
      [this, server](const absl::StatusOr<proto::ReleaseJobReply>& reply) {
        environment_.post([this, server, status = reply.status()] { OnReleased(server, status); });
      });
}

void JobRun::OnReleased(size_t server, const absl::Status& status) {
  if (EndsBySuccessor(status)) {
    return;
  }
  const auto holder = holders_.find(server);
  if (holder == holders_.end()) {
    return;  // it was lost meanwhile
  }
  if (!status.ok()) {
    LogWarning("{} has not let go of {}, which is over: {}", NameOf(servers_[server]), job_.id,
               Message(status));
    holder->second = environment_.clock.Now() + kBetweenReleases;
    return;
  }
  holders_.erase(holder);
  Change();
  if (holders_.empty()) {
    Clear();
  }
}

void JobRun::OnHolderLost(const Member& member) {
  const auto found = std::ranges::find(servers_, member.incarnation, &Member::incarnation);
  if (found != servers_.end() &&
      holders_.erase(static_cast<size_t>(found - servers_.begin())) > 0 && holders_.empty()) {
    Clear();
  }
}

void JobRun::ReleaseAgain(absl::Time now) {
  for (const auto& [server, due] : holders_) {
    if (now >= due) {
      Release(server);
    }
  }
}

absl::Time JobRun::NextRelease() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [server, due] : holders_) {
    next = std::min(next, due);
  }
  return next;
}

// Behind all that is still to run for this job: frees what was read for it, and ends its calls,
// which must not happen under the owner's lock.
void JobRun::Clear() {
  proto::SavedRun released;
  released.set_run(job_.run);
  Log(environment_.store.SaveRun(job_.id, released, /*begins=*/false));
  environment_.plan([this, moved = ReleaseServers()]() mutable {
    environment_.disk([this, controls = std::move(moved)]() mutable {
      controls.clear();
      record_.reset();
      environment_.post([this] {
        cleared_ = true;
        waves_ = {};
        known_maps_ = {};
        if (!restarts_) {
          job_.steps.reset();
          job_.checkpoints.reset();
        }
        Change();
      });
    });
  });
}

// These have nothing of the job any more.
void JobRun::ReleaseAt(ServerClient& control, const std::vector<int>& members) {
  proto::ReleaseJobRequest request;
  request.set_job_id(job_.id);
  request.set_term(environment_.term);
  request.set_run(job_.run);
  for (const int member : members) {
    control.Call(member, &rpc::ParameterServerService::ReleaseJob, request,
                 [](const absl::StatusOr<proto::ReleaseJobReply>&) {});
  }
}

std::vector<std::shared_ptr<ServerClient>> JobRun::ReleaseServers() {
  return {std::move(control_), std::move(move_control_), std::move(retired_control_),
          std::move(joiners_.control)};
}

}  // namespace shoal::server

// A run of an earlier life of the coordinator goes on where it is: servers are asked, a commit that
// is recorded is repeated at those that missed it, and the step under way begins as another
// attempt. takeover.h decides.
#include <algorithm>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/job/shard_map_message.h"
#include "server/coordinator/job/call_all.h"
#include "server/coordinator/job/job_run.h"

namespace shoal::server {
namespace {

constexpr absl::Duration kBetweenQuestions = absl::Milliseconds(200);
// At most: those that a life gives are none that another gave, with a record or without.
constexpr int64_t kFormationsOfALife = int64_t{1} << 32;

std::vector<Member> MembersOf(const google::protobuf::RepeatedPtrField<proto::SavedMember>& saved) {
  std::vector<Member> members;
  for (const proto::SavedMember& member : saved) {
    members.push_back(FromSaved(member));
  }
  return members;
}

// Writes down who is not there yet: members change with their incarnation alone, and seldom.
void Describe(const std::vector<Member>& members,
              google::protobuf::RepeatedPtrField<proto::SavedMember>& saved) {
  if (std::ranges::equal(members, saved, {}, &Member::incarnation,
                         &proto::SavedMember::incarnation)) {
    return;
  }
  saved.Clear();
  for (const Member& member : members) {
    *saved.Add() = ToSaved(member);
  }
}

}  // namespace

// Brought up to date.
const proto::SavedRun& JobRun::DescribeRun() {
  proto::SavedRun& run = saved_;
  run.set_run(job_.run);
  run.set_first_version(loaded_version_);
  run.set_wanted_workers(job_.workers);
  run.set_wanted_servers(job_.servers);
  run.set_move_rate(waves_.rate);
  run.set_settled(!waves_.follow);
  run.mutable_formations()->Assign(formations_.begin(), formations_.end());
  Describe(servers_, *run.mutable_servers());
  Describe(workers_, *run.mutable_workers());
  run.set_shard_map(Forms().bytes);
  run.set_generation(job_.shard_map.generation);
  run.clear_validation();
  if (validation_.has_value()) {
    *run.mutable_validation() = *validation_;
  }
  return run;
}

void JobRun::TakeOver(const EarlierRun& earlier) {
  SHOAL_CHECK(phase_ == Phase::kWaiting);
  SetLogContext(job_.id);
  const proto::SavedRun& saved = earlier.saved;
  job_.run = saved.run();
  job_.servers = saved.wanted_servers() > 0 ? saved.wanted_servers() : saved.servers_size();
  job_.workers = saved.wanted_workers();
  Settle();
  waves_.rate = saved.move_rate();
  loaded_version_ = saved.first_version();
  job_.shard_map = plan::MapFromBytes(saved.shard_map(), saved.generation());
  SetMembers(MembersOf(saved.servers()), MembersOf(saved.workers()));
  waves_.follow = !saved.settled() || LacksBackups();
  std::copy_n(saved.formations().begin(), std::min(saved.formations_size(), saved.workers_size()),
              formations_.begin());
  formation_ = environment_.term * kFormationsOfALife;
  takeover_.emplace();
  takeover_->run = earlier;
  takeover_->answers.resize(servers_.size());
  phase_ = Phase::kTakingOver;
  SetState("taking over");
  for (size_t server = 0; server < servers_.size(); ++server) {
    AskForTakeover(server);
  }
  environment_.disk([this] {
    const absl::Status taken =
        job_.checkpoints->Take({job_.id, environment_.term}, /*resume=*/true);
    const absl::StatusOr<int64_t> last_event =
        taken.ok() ? job_.checkpoints->LastRecorded() : absl::StatusOr<int64_t>(taken);
    environment_.post([this, last_event] { OnRecordRead(last_event); });
  });
}

void JobRun::AskWhereItIs(size_t server, rpc::Done<proto::TakeOverReply> done) {
  proto::TakeOverRequest request;
  request.set_job_id(job_.id);
  request.set_term(environment_.term);
  request.set_run(job_.run);
  control_->Call(static_cast<int>(server), &rpc::ParameterServerService::TakeOver, request,
                 [post = environment_.post, done = std::move(done)](const auto& reply) {
                   post([done, reply] { done(reply); });
                 });
}

void JobRun::AskForTakeover(size_t server) {
  AskWhereItIs(server, [this, server](const absl::StatusOr<proto::TakeOverReply>& reply) {
    OnAnswer(server, reply);
  });
}

// Who cannot be reached is asked until its lease says that it is lost.
void JobRun::AskAgain(absl::Time now) {
  std::erase_if(takeover_->ask_again, [&](const auto& entry) {
    const auto [server, due] = entry;
    if (now >= due) {
      AskForTakeover(server);
    }
    return now >= due;
  });
}

absl::Time JobRun::NextAsk() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [server, due] : takeover_->ask_again) {
    next = std::min(next, due);
  }
  return next;
}

void JobRun::OnAnswer(size_t server, const absl::StatusOr<proto::TakeOverReply>& reply) {
  if (closed() || EndsBySuccessor(reply.status()) || !takeover_.has_value() || takeover_->decided ||
      replicas_.lost.contains(servers_[server].incarnation)) {
    return;  // it is lost, and others have what it had
  }
  if (IsUnreachable(reply.status())) {
    takeover_->ask_again[server] = environment_.clock.Now() + kBetweenQuestions;
    return;
  }
  if (!reply.ok() && !IsAnotherProcess(reply.status())) {
    Fail(fmt::format("{} cannot be taken over: {}", NameOf(servers_[server]),
                     Message(reply.status())));
    return;
  }
  const proto::TakeOverReply at = reply.value_or(proto::TakeOverReply());
  takeover_->answers[server] = {.server = NameOf(servers_[server]), .holds = at.holds(), .at = at};
  DecideOnAnswers();
}

void JobRun::OnRecordRead(const absl::StatusOr<int64_t>& last_event) {
  if (closed() || EndsBySuccessor(last_event.status())) {
    return;
  }
  if (!last_event.ok()) {
    Fail(std::string(Message(last_event.status())));
    return;
  }
  takeover_->recorded = *last_event;
  DecideOnAnswers();
}

void JobRun::DecideOnAnswers() {
  std::vector<ServerAnswer> answers;
  for (const auto& answer : takeover_->answers) {
    if (!answer.has_value() || !takeover_->recorded.has_value()) {
      return;
    }
    answers.push_back(*answer);
  }
  const proto::SavedRun& saved = takeover_->run.saved;
  const bool restores = job_.job.RestoresOnServerLoss();
  const auto is_held = [count = std::ssize(servers_)](const plan::Holders& holders) {
    const auto is_there = [count](int holder) { return holder >= 0 && holder < count; };
    return !holders.empty() && std::ranges::all_of(holders, is_there);
  };
  if (job_.shard_map.servers.size() != job_.pushes.partitions.size() ||
      !std::ranges::all_of(job_.shard_map.servers, is_held)) {
    takeover_->decided = true;
    EndBy({.message = "the shard map of its run cannot be read: another version of "
                      "shoal-coordinator recorded it, or it is damaged",
           .by_loss = restores});
    return;
  }
  const TakeoverDecision decision = DecideTakeover({.first_version = saved.first_version(),
                                                    .generation = job_.shard_map.generation,
                                                    .commit = takeover_->run.commit},
                                                   answers);
  if (decision.what == TakeoverDecision::What::kRestart && LoseWhoHoldsNothing(answers)) {
    return;
  }
  takeover_->decided = true;
  switch (decision.what) {
    case TakeoverDecision::What::kRestart:
      EndBy({.message = decision.message, .by_loss = restores});
      return;
    case TakeoverDecision::What::kConfigure:
      if (const auto lost = std::ranges::find_if(answers, &ServerAnswer::lost);
          lost != answers.end()) {
        EndBy(
            {.message = fmt::format("lost {} before all servers had loaded the job", lost->server),
             .by_loss = restores});
        return;
      }
      if (decision.version != version_) {
        EndBy({.message = fmt::format(
                   "a server no longer holds the job, and its record of step {} is lost", version_),
               .by_loss = restores});
        return;
      }
      attempts_before_ = decision.attempt;
      takeover_.reset();
      phase_ = Phase::kConfiguring;
      SetState("loading");
      RequestFirstPlan();
      Configure();
      return;
    case TakeoverDecision::What::kCommit:
      LogInfo("step {} attempt {} is recorded, and committed again where it is not",
              decision.commit.step, decision.commit.attempt);
      step_ = decision.commit.step;
      attempt_ = decision.commit.attempt;
      CallAll(
          &rpc::ParameterServerService::Commit,
          [request = CommitRequestOf(decision.commit)](int) { return request; },
          [this, decision](const std::vector<proto::CommitReply>&) { GoOn(decision); },
          OrWithoutLost([this, decision] { GoOn(decision); }));
      return;
    case TakeoverDecision::What::kTrain:
      GoOn(decision);
      return;
  }
}

// Of those that are there as another process, where others have what they had; then it is decided
// anew.
bool JobRun::LoseWhoHoldsNothing(const std::vector<ServerAnswer>& answers) {
  for (size_t server = 0; server < answers.size(); ++server) {
    const bool gone = !answers[server].holds && !answers[server].lost;
    if (const Member member = servers_[server]; gone && IsReplaced(member)) {
      Lose(member, "it no longer holds the job", /*asked=*/false);
      return true;
    }
  }
  return false;
}

int64_t JobRun::LastTold() const {
  int64_t told = 0;
  for (const proto::JobEvent& event : events_->After(0)) {
    told = event.has_step() ? event.step().step() : told;
  }
  return told;
}

// One that was due, and is not complete.
bool JobRun::OwesCheckpoint() const {
  const int64_t every = job_.job.checkpoint.every_steps;
  const int64_t newest = newest_checkpoint_.has_value() ? newest_checkpoint_->step : 0;
  return every > 0 && version_ / every > newest / every;
}

void JobRun::GoOn(const TakeoverDecision& decision) {
  told_generation_ = job_.shard_map.generation;
  for (size_t server = 0; server < takeover_->answers.size(); ++server) {
    const auto& answer = takeover_->answers[server];
    server_gpus_[servers_[server].incarnation] = answer->at.configured().gpu();
    if (!answer->lost) {
      told_generation_ = std::min(told_generation_, answer->at.generation());
    }
  }
  TellReplicas();
  version_ = decision.version;
  attempts_before_ = decision.attempt;
  // What was told and not written any more.
  for (const proto::JobEvent& event : events_->After(*takeover_->recorded)) {
    RecordEvent(event);
  }
  record_->Open();
  if (decision.commit.step == version_ && version_ > 0) {
    TakeCommitted(decision.commit.event);
    if (LastTold() != version_) {
      proto::JobEvent event;
      *event.mutable_step() = decision.commit.event;
      Append(std::move(event));
    }
  }
  TakeOverValidation(takeover_->run.saved);
  const absl::Time now = environment_.clock.Now();
  proto::JobEvent event;
  event.mutable_restart()->set_seconds(absl::ToDoubleSeconds(now - environment_.started));
  event.mutable_restart()->set_step(version_);
  event.mutable_restart()->set_term(environment_.term);
  Append(std::move(event));
  LogInfo("{} goes on after step {}", job_.id, version_);
  SetBytesLeft(DescribeWish(job_.servers).bytes_moved());
  checkpoint_started_ = now;
  checkpoint_again_ = OwesCheckpoint() ? now : absl::InfiniteFuture();
  takeover_.reset();
  SetState("training");
  Change();
  AfterCommit();
  AdmitWorkers();
}

}  // namespace shoal::server

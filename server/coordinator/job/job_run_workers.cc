// Workers come and go while a job trains.
#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/step/hand_over.h"
#include "server/coordinator/job/call_all.h"
#include "server/coordinator/job/job_run.h"
#include "server/coordinator/job/worker_kind.h"

namespace shoal::server {

// Servers take connections and pushes of whom they were told of, so they hear of workers before
// these hear of them.
void JobRun::AdmitWorkers() {
  if (to_admit_.empty() || closed() || phase_ <= Phase::kConfiguring) {
    return;
  }
  proto::AdmitClientsRequest request;
  const std::vector<uint64_t> told = std::exchange(to_admit_, {});
  request.mutable_incarnation()->Assign(told.begin(), told.end());
  admitting_.insert(admitting_.end(), told.begin(), told.end());
  CallAll(
      &rpc::ParameterServerService::AdmitClients, [request](int) { return request; },
      [this, told](const std::vector<proto::AdmitClientsReply>&) {
        admitted_.insert(told.begin(), told.end());
        std::erase_if(admitting_, [this](uint64_t worker) { return admitted_.contains(worker); });
        Change();  // they may join
      });
}

int64_t JobRun::present() const { return std::ranges::count(absent_, char{false}); }

// With which the job goes on.
int64_t JobRun::least_workers() const {
  const auto stages = static_cast<int64_t>(groups_.stages());
  return (job_.job.cluster.min_workers + stages - 1) / stages * stages;
}

bool JobRun::HasRoom() const {
  return !closed() && !stop_requested_ && present() + joining_.size() < job_.workers;
}

bool JobRun::Suits(const Member& worker) {
  if (const absl::Status able = CheckWorker(worker, job_.job); !able.ok()) {
    if (unlike_.insert(worker.incarnation).second) {
      TellWarning(std::string(Message(able)));
    }
    return false;
  }
  const std::string kind = WorkerKind(worker, job_.job);
  const bool refuses = job_.job.train.exact_devices;
  const bool matters = refuses || job_.job.service.accumulate == plan::Accumulate::kExact;
  if (!matters || kind.empty() || job_.workers_kind.empty() || kind == job_.workers_kind) {
    return true;
  }
  if (unlike_.insert(worker.incarnation).second) {
    const std::string what =
        fmt::format("it computes on {}, the job's first workers on {}", kind, job_.workers_kind);
    TellWarning(refuses
                    ? fmt::format("{} is refused: {} (train.exact_devices)", NameOf(worker), what)
                    : fmt::format("bits may differ with {}: {}; train.exact_devices refuses "
                                  "such a worker",
                                  NameOf(worker), what));
  }
  return !refuses;
}

void JobRun::TakeIn(const std::vector<Member>& workers) {
  for (const Member& worker : workers) {
    if (!HasRoom()) {
      break;
    }
    if (!Suits(worker)) {
      continue;
    }
    LogInfo("{} joins {}", NameOf(worker), job_.id);
    Record({{"event", "joined"}, {"step", step_}, {"member", NameOf(worker)}});
    environment_.metrics.workers_joined.Increment();
    joining_.Add(worker);
    to_admit_.push_back(worker.incarnation);
  }
  AdmitWorkers();
  FormGroups();
  if (phase_ == Phase::kShort) {
    OpenStep();
  }
}

void JobRun::FormGroups() {
  const size_t stages = groups_.stages();
  while (joining_.spares() >= stages) {
    formation_ += stages > 1 ? 1 : 0;
    const JoiningGroups::Group& group = joining_.Form(stages, formation_);
    // Where workers exchange among themselves it cannot join before the others know of it.
    if (plan::MayExchange(job_.job)) {
      joining_.Ask(group.workers.front().incarnation);
    }
    Change();
  }
}

std::optional<proto::NextStepReply> JobRun::Next(const proto::NextStepRequest& request) {
  proto::NextStepReply reply;
  reply.set_term(environment_.term);
  if (over() || request.run() != job_.run) {
    reply.set_job_over(true);
    return reply;
  }
  if (closed()) {
    return std::nullopt;
  }
  if (const std::optional<size_t> teller = WorkerOf(request.incarnation());
      teller.has_value() && !absent_[*teller] && request.formation() == formations_[*teller]) {
    TakeFrom(*teller, request);
  }
  const std::optional<size_t> worker = WorkerOf(request.incarnation());
  if (!worker.has_value() || absent_[*worker]) {
    return NextOfJoiner(request);
  }
  if (request.formation() != formations_[*worker]) {
    const bool waits_for_others = groups_.stages() > 1 || plan::MayExchange(job_.job);
    if (request.known_generation() <= 0 || request.leaving() || waits_for_others) {
      reply.set_join_again(true);
      return reply;
    }
    if (!Join(request.incarnation(), request.known_generation(), *reply.mutable_join())) {
      return std::nullopt;
    }
  }
  // Whoever has not reported the attempt gets its work, again if need be: the answer may have been
  // lost.
  if (phase_ == Phase::kRunning && working_[*worker]) {
    *reply.mutable_work() = work_[*worker];
  }
  return reply.has_work() || reply.has_join() ? std::optional(std::move(reply)) : std::nullopt;
}

// What a worker says with its question. Workers may have other numbers then.
void JobRun::TakeFrom(size_t worker, const proto::NextStepRequest& request) {
  pushes_[worker] = request.pushes();
  known_maps_.peers[worker] = true;  // its formation was told them
  leaving_[worker] = leaving_[worker] || request.leaving();
  if (request.has_finished()) {
    TakeReport(worker, request.finished());
  }
  if (const std::optional<size_t> still = WorkerOf(request.incarnation()); still.has_value()) {
    LetGo(*still);
  }
}

std::optional<proto::NextStepReply> JobRun::NextOfJoiner(const proto::NextStepRequest& request) {
  const JoiningGroups::Group* const group = joining_.GroupOf(request.incarnation());
  if (group == nullptr || group->formation != request.formation() || request.leaving() ||
      plan::MayExchange(job_.job)) {
    proto::NextStepReply reply;
    reply.set_term(environment_.term);
    reply.set_join_again(true);
    return reply;
  }
  joining_.Ask(request.incarnation());
  if (phase_ == Phase::kShort) {
    OpenStep();
  }
  return std::nullopt;
}

std::string JobRun::Missing() const {
  const int64_t missing = least_workers() - present() - joining_.size();
  if (missing <= 0) {
    return "workers to be ready";
  }
  return fmt::format(
      "{} worker{}{}", missing, missing == 1 ? "" : "s",
      groups_.stages() == 1 ? "" : fmt::format(" (a group has {} stages)", groups_.stages()));
}

// Servers hear of a new map all the same: by it workers join, and more may move, as what those hold
// that are to leave.
void JobRun::WaitForWorkers() {
  const bool begins = std::exchange(phase_, Phase::kShort) != Phase::kShort;
  SetState("waiting for " + Missing());
  if (!begins) {
    return;
  }
  short_since_ = environment_.clock.Now();
  if (told_generation_ != job_.shard_map.generation) {
    NumberStep();
    BeginAtServers([this] {
      OnMapTold();
      if (phase_ == Phase::kShort) {
        OpenStep();
      }
    });
  }
}

bool JobRun::Regroup() {
  if (IsShort()) {
    return false;
  }
  if (joining_.ready() == 0 && present() == std::ssize(workers_)) {
    return true;
  }
  std::vector<int> before;
  std::vector<Member> workers;
  std::vector<int64_t> formations;
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    if (!absent_[worker]) {
      before.push_back(static_cast<int>(worker));
      workers.push_back(workers_[worker]);
      formations.push_back(formations_[worker]);
    }
  }
  for (const JoiningGroups::Group& group : joining_.TakeReady()) {
    for (const Member& worker : group.workers) {
      before.push_back(-1);
      workers.push_back(worker);
      formations.push_back(group.formation);
    }
  }
  workers_ = std::move(workers);
  formations_ = std::move(formations);
  Renumber(before);
  Log(environment_.store.SaveRun(job_.id, DescribeRun(), /*begins=*/false));
  return true;
}

// Worker w is the one that was `before[w]`, or has joined (-1).
void JobRun::Renumber(const std::vector<int>& before) {
  const auto keep = [&before](auto& of_workers) {
    auto kept = of_workers;
    kept.assign(before.size(), {});
    for (size_t worker = 0; worker < before.size(); ++worker) {
      if (before[worker] >= 0 && before[worker] < std::ssize(of_workers)) {
        kept[worker] = of_workers[static_cast<size_t>(before[worker])];
      }
    }
    of_workers = std::move(kept);
  };
  keep(pushes_);
  keep(last_steps_);
  keep(leaving_);
  absent_.assign(workers_.size(), false);
  known_maps_.peers.assign(workers_.size(), false);
  const auto stages = static_cast<int>(groups_.stages());
  groups_ = WorkerGroups(workers_.size(), stages);
  std::vector<int> groups_before;
  for (size_t group = 0; group < groups_.groups(); ++group) {
    const int first = before[groups_.WorkerAt(group, 0)];
    groups_before.push_back(first < 0 ? -1 : first / stages);
  }
  NameWorkers();
  measurements_->Renumber(groups_before);
  if (plan::MayExchange(job_.job)) {
    formations_.assign(workers_.size(), ++formation_);
  }
  LogInfo("{} goes on with {} workers", job_.id, workers_.size());
  Change();
}

void JobRun::LoseWorker(const Member& member) {
  if (joining_.Remove(member.incarnation)) {
    lost_workers_.push_back(member.incarnation);
    FormGroups();
    Change();
  } else if (const auto worker = WorkerOf(member.incarnation); worker.has_value()) {
    GoOnWithout(*worker);
  }
  if (phase_ == Phase::kShort) {
    OpenStep();  // says for whom it waits now
  }
}

void JobRun::GoOnWithout(size_t worker) {
  if (absent_[worker]) {
    return;  // it left before
  }
  lost_workers_.push_back(workers_[worker].incarnation);
  environment_.metrics.workers_lost.Increment();
  const size_t group = groups_.GroupOf(worker);
  for (size_t stage = 0; stage < groups_.stages(); ++stage) {
    const size_t other = groups_.WorkerAt(group, stage);
    absent_[other] = true;
    if (other != worker && !leaving_[other]) {
      joining_.Add(workers_[other]);
    }
  }
  FormGroups();
  Change();
  if (phase_ == Phase::kRunning) {
    HandOver(group);
  }  // else OnBegun or the next step sees that it is absent
}

void JobRun::LetGo(size_t worker) {
  const bool needed =
      phase_ == Phase::kRunning && !working_[worker] && GroupWorks(groups_.GroupOf(worker));
  if (leaving_[worker] && !absent_[worker] && !needed) {
    LogInfo("{} leaves in step {}", names_[worker], step_);
    GoOnWithout(worker);
  }
}

bool JobRun::GroupWorks(size_t group) const {
  bool works = false;
  for (size_t stage = 0; stage < groups_.stages(); ++stage) {
    works = works || working_[groups_.WorkerAt(group, stage)];
  }
  return works;
}

// Whether the attempt cannot go on without a group that is gone: others wait for it at layers, or
// servers may have a part of its sum of packs, or there is nobody else.
bool JobRun::MustDropWithout(size_t group) const {
  const int index = static_cast<int>(group);
  bool wanted = job_.job.train.synchronization == plan::Synchronization::kLayer;
  bool in_hand = GroupWorks(group) || (draws_.has_value() && draws_->Left(index) > 0);
  for (size_t stage = 0; stage < groups_.stages(); ++stage) {
    wanted = wanted || (!validating_ && pushes_[groups_.WorkerAt(group, stage)] !=
                                            proto::NextStepRequest::PUSHES_OF_PACKS);
    in_hand = in_hand || ledger_->Left(index, stage) > 0;
  }
  return (in_hand && wanted) || (present() == 0 && !ledger_->done());
}

void JobRun::HandOver(size_t group) {
  const std::string name = groups_.stages() == 1 ? names_[group] : fmt::format("group {}", group);
  if (MustDropWithout(group)) {
    DropForMembers(name + " is lost");
    return;
  }
  for (size_t stage = 0; stage < groups_.stages(); ++stage) {
    const size_t worker = groups_.WorkerAt(group, stage);
    working_[worker] = false;
    if (!reports_[worker].has_value()) {
      reported_at_[worker] = environment_.clock.Now();
    }
  }
  const int index = static_cast<int>(group);
  const std::vector<int64_t> undone = ledger_->TakeBack(index);
  redealt_[group].clear();
  environment_.metrics.packs_taken_back.Increment(static_cast<double>(undone.size()));
  Record({{"event", "handed_over"}, {"step", step_}, {"member", name}, {"packs", undone.size()}});
  if (draws_.has_value()) {
    draws_->Lose(index, undone, absl::ToDoubleSeconds(environment_.clock.Now() - step_opened_));
  } else {
    std::vector<bool> absent;
    for (size_t other = 0; other < groups_.groups(); ++other) {
      absent.push_back(!IsWhole(other));
    }
    for (const auto& [pack, taker] : plan::HandOver(plan_, undone, absent)) {
      ledger_->Give(pack, taker);
      redealt_[static_cast<size_t>(taker)].push_back(pack);
    }
  }
  for (size_t other = 0; other < groups_.groups(); ++other) {
    StartRound(other);
  }
  EndOfRounds();
}

// All its stages begin it together, with the same packs in the same order.
void JobRun::StartRound(size_t group) {
  const int index = static_cast<int>(group);
  const bool waits = draws_.has_value() ? draws_->Left(index) > 0 : !redealt_[group].empty();
  if (!IsWhole(group) || GroupWorks(group) || !waits) {
    return;
  }
  std::vector<const plan::Microbatch*> packs;
  if (draws_.has_value()) {
    draws_->Resume(index, absl::ToDoubleSeconds(environment_.clock.Now() - step_opened_));
    packs = draws_->Given(index);
  }
  for (const int64_t pack : std::exchange(redealt_[group], {})) {
    packs.push_back(plan_.Find(pack));
  }
  for (size_t stage = 0; stage < groups_.stages(); ++stage) {
    const size_t worker = groups_.WorkerAt(group, stage);
    proto::StepWork& work = work_[worker];
    const int64_t round = work.round() + 1;
    FillWork(work);
    work.set_round(round);
    work.set_draw(draws_.has_value());
    for (const plan::Microbatch* pack : packs) {
      ledger_->Give(pack->number, index);
      FillMicrobatch(*pack, *work.add_microbatches());
    }
    working_[worker] = true;
  }
  Change();
}

void JobRun::EndOfRounds() {
  if (phase_ == Phase::kRunning && std::ranges::find(working_, true) == working_.end()) {
    validating_ ? EndValidation() : PrepareStep();
  }
}

// Of those that come no worker knows yet, nor they of any.
void JobRun::AdmitAgain() {
  for (const uint64_t worker : admitted_) {
    if (TakesPart(worker)) {
      to_admit_.push_back(worker);
    }
  }
  to_admit_.insert(to_admit_.end(), admitting_.begin(), admitting_.end());
  admitted_.clear();
  admitting_.clear();
  AdmitWorkers();
}

void JobRun::Fence(const Member& worker) {
  if (closed() ||
      (!WorkerOf(worker.incarnation).has_value() && !admitted_.contains(worker.incarnation))) {
    return;  // It was never let in, or is a server.
  }
  proto::FenceClientRequest request;
  request.set_incarnation(worker.incarnation);
  request.set_term(environment_.term);
  for (size_t server = 0; server < servers_.size(); ++server) {
    control_->Call(
        static_cast<int>(server), &rpc::ParameterServerService::FenceClient, request,
        [this, worker = NameOf(worker), server = NameOf(servers_[server])](const auto& reply) {
          if (IsSuperseded(reply.status())) {
            environment_.post([this, status = reply.status()] { EndsBySuccessor(status); });
          } else if (!reply.ok() && !absl::IsCancelled(reply.status())) {
            LogWarning("{} does not know that the lease of {} is over: {}", server, worker,
                       Message(reply.status()));
          }
        });
  }
}

}  // namespace shoal::server

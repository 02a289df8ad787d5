#include "server/coordinator/job/job_run.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/base/testing/planted.h"
#include "core/job/shard_map_message.h"
#include "core/plan/memory/memory_plan.h"
#include "core/plan/placement/placement.h"
#include "core/rpc/server_gpu.h"
#include "server/coordinator/job/call_all.h"
#include "server/coordinator/job/loss_decision.h"
#include "server/coordinator/job/worker_kind.h"

namespace shoal::server {
namespace {

constexpr absl::Duration kStallNotice = absl::Seconds(60);

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address.starts_with("localhost:") ||
         address.starts_with("[::1]");
}

std::string Count(int64_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

}  // namespace

JobRun::JobRun(LoadedJob job, std::optional<CompleteCheckpoint> resume, JobEnvironment environment,
               std::shared_ptr<EventLog> events)
    : job_(std::move(job)),
      environment_(std::move(environment)),
      events_(std::move(events)),
      first_version_(resume.has_value() ? resume->step : 0),
      version_(resume.has_value() ? resume->step : 0),
      last_loss_(resume.has_value() ? resume->loss : 0),
      norms_(resume.has_value() ? resume->norms : proto::GradientNorms()),
      validation_(resume.has_value() ? resume->validation : std::nullopt),
      newest_checkpoint_(std::move(resume)),
      record_(std::in_place, environment_.disk,
              [this](const std::string& lines) { return job_.checkpoints->Record(lines); }) {
  waves_.pace = environment_.move_pace;
}

JobRun::~JobRun() = default;

void JobRun::Take(int64_t servers, int64_t workers) {
  job_.servers = servers;
  job_.workers = workers;
  job_.shard_map = job_.place_shards(static_cast<int>(servers));
}

void JobRun::Offer(std::vector<Member> servers, std::vector<Member> workers) {
  const size_t workers_there = workers.size();
  if (job_.job.train.exact_devices) {
    KeepOneKind(job_.job, job_.workers_kind, workers);
  }
  const bool has_others = workers.size() < workers_there;
  const int64_t missing_servers = job_.servers - std::ssize(servers);
  const int64_t missing_workers = job_.workers - std::ssize(workers);
  if (missing_servers > 0 || missing_workers > 0) {
    WaitFor(std::max<int64_t>(missing_servers, 0), std::max<int64_t>(missing_workers, 0),
            has_others ? " like the others (train.exact_devices)" : "");
    return;
  }
  servers.resize(static_cast<size_t>(job_.servers));
  workers.resize(static_cast<size_t>(job_.workers));
  Start(std::move(servers), std::move(workers));
}

void JobRun::WaitFor(int64_t servers, int64_t workers, const std::string& of_workers) {
  SHOAL_CHECK(phase_ == Phase::kWaiting);
  std::string missing = servers > 0 ? Count(servers, "server") : "";
  if (workers > 0) {
    missing += (missing.empty() ? "" : " and ") + Count(workers, "worker") + of_workers;
  }
  if (!waiting_since_.has_value()) {
    waiting_since_ = environment_.clock.Now();
  }
  waiting_for_ = missing;
  SetState("waiting for " + missing);
}

void JobRun::Queue(int64_t ahead) {
  SHOAL_CHECK(phase_ == Phase::kWaiting);
  SetState("waiting for " + Count(ahead, "job") + " ahead");
}

void JobRun::SetServers(std::vector<Member> servers) {
  servers_ = std::move(servers);
  control_ = environment_.make_clients(servers_);
}

void JobRun::SetMembers(std::vector<Member> servers, std::vector<Member> workers) {
  SetServers(std::move(servers));
  workers_ = std::move(workers);
  for (const Member& worker : workers_) {
    to_admit_.push_back(worker.incarnation);
    if (job_.workers_kind.empty()) {
      job_.workers_kind = WorkerKind(worker, job_.job);
    }
  }
  groups_ = WorkerGroups(workers_.size(), job_.job.cluster.pipeline.stages);
  pushes_.assign(workers_.size(), proto::NextStepRequest::PUSHES_OF_PACKS);
  absent_.assign(workers_.size(), false);
  leaving_.assign(workers_.size(), false);
  formations_.assign(workers_.size(), 0);
  known_maps_ = {.peers = std::vector<bool>(workers_.size(), false)};
  NameWorkers();
  measurements_.emplace(job_.job, static_cast<int>(groups_.groups()));
}

void JobRun::NameWorkers() {
  names_.clear();
  worker_at_.clear();
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    worker_at_[workers_[worker].incarnation] = worker;
    const std::string place = groups_.Place(worker);
    names_.push_back(NameOf(workers_[worker]) + (place.empty() ? "" : ", " + place));
  }
}

void JobRun::Start(std::vector<Member> servers, std::vector<Member> workers) {
  SHOAL_CHECK(phase_ == Phase::kWaiting);
  SetLogContext(job_.id);
  const auto count = static_cast<int>(servers.size());
  job_.shard_map = plan::WithBackups(job_.pushes.partitions, job_.place_shards(count),
                                     plan::FirstServers(count), replicas(), HostsOf(servers));
  SetMembers(std::move(servers), std::move(workers));
  absl::Status begins = CheckStages();
  for (const Member& worker : workers_) {
    begins.Update(CheckWorker(worker, job_.job));
  }
  job_.run = environment_.next_run();
  loaded_version_ = version_;
  if (begins.ok()) {
    begins = environment_.store.SaveRun(job_.id, DescribeRun(), /*begins=*/true);
  }
  if (EndsBySuccessor(begins)) {
    return;
  }
  if (!begins.ok()) {
    Fail(std::string(Message(begins)));
    return;
  }
  phase_ = Phase::kConfiguring;
  SetState("loading");
  std::ranges::for_each(workers_, [this](const Member& worker) { Suits(worker); });
  RequestFirstPlan();
  environment_.disk([this] {
    const absl::Status taken = job_.checkpoints->Take({job_.id, environment_.term}, version_ > 0);
    environment_.post([this, taken] { OnFolderTaken(taken); });
  });
}

void JobRun::OnFolderTaken(const absl::Status& status) {
  if (closed() || EndsBySuccessor(status)) {
    return;
  }
  if (!status.ok()) {
    Fail(std::string(Message(status)));
    return;
  }
  Configure();
}

void JobRun::Configure() {
  proto::ConfigureRequest request;
  *request.mutable_job() = plan::ToMessage(job_.job);
  request.set_servers(static_cast<int>(servers_.size()));
  request.set_run(job_.run);
  *request.mutable_shard_map() = plan::ToMessage(job_.shard_map);
  if (version_ > 0) {  // what is saved of step 0 is the model
    request.set_checkpoint(newest_checkpoint_->path);
  }
  CallAll(
      &rpc::ParameterServerService::Configure,
      [request](int server) mutable {
        request.set_server_index(server);
        return request;
      },
      [this](const std::vector<proto::ConfigureReply>& replies) { OnConfigured(replies); });
}

// Workers that may exchange weights and gradients among themselves reach the first of them at the
// address that it registered with.
void JobRun::FillPeers(proto::JoinJobReply& reply) const {
  if (!plan::MayExchange(job_.job) || workers_.size() < 2) {
    return;
  }
  const Member& first = workers_.front();
  const bool one_host =
      std::ranges::all_of(workers_, [&](const Member& other) { return other.host == first.host; });
  if (first.address.empty() || (!one_host && IsLoopback(first.address))) {
    reply.set_without_peers(
        fmt::format("{} on {} registered {}, at which workers on other hosts do not reach it: "
                    "start it with --listen or --advertise HOST:PORT",
                    NameOf(first), first.host,
                    first.address.empty() ? "without an address" : "with " + first.address));
    return;
  }
  for (const Member& member : workers_) {
    auto* peer = reply.add_peers();
    peer->set_index(member.index);
    peer->set_address(member.address);
    peer->set_incarnation(member.incarnation);
  }
}

// Stages reach each other at the addresses that they registered with.
absl::Status JobRun::CheckStages() const {
  for (size_t worker = 0; worker < workers_.size() && groups_.stages() > 1; ++worker) {
    if (workers_[worker].address.empty()) {
      return FailedPrecondition(
          "{} registered without an address, at which the other stages of its group would reach it",
          names_[worker]);
    }
    const Member& first = workers_[groups_.WorkerAt(groups_.GroupOf(worker), 0)];
    if (first.host != workers_[worker].host) {
      for (const Member* member : {&first, &workers_[worker]}) {
        if (IsLoopback(member->address)) {
          return FailedPrecondition(
              "{} on {} registered with the address {}, at which the stages of its group on other "
              "hosts do not reach it: start it with --listen or --advertise HOST:PORT",
              NameOf(*member), member->host, member->address);
        }
      }
    }
  }
  return absl::OkStatus();
}

void JobRun::OnConfigured(const std::vector<proto::ConfigureReply>& replies) {
  for (size_t server = 0; server < replies.size(); ++server) {
    if (replies[server].version() != version_) {
      Fail(fmt::format("{} loaded version {} of the weights instead of {}",
                       NameOf(servers_[server]), replies[server].version(), version_));
      return;
    }
    const proto::ServerGpu& gpu = server_gpus_[servers_[server].incarnation] =
        replies[server].gpu();
    if (const absl::Status sound = rpc::CheckServerGpu(gpu); !sound.ok()) {
      Fail(fmt::format("{}: {}", NameOf(servers_[server]), Message(sound)));
      return;
    }
  }
  told_generation_ = job_.shard_map.generation;
  TellReplicas();
  checkpoint_started_ = environment_.clock.Now();
  RecordStart();
  SetState("training");
  OpenStep();
  AdmitWorkers();
}

std::optional<proto::JoinJobReply> JobRun::Join(const proto::JoinJobRequest& request) {
  const bool knows = request.known().job_id() == job_.id && request.known().run() == job_.run;
  proto::JoinJobReply reply;
  return Join(request.incarnation(), knows ? request.known().generation() : 0, reply)
             ? std::optional(std::move(reply))
             : std::nullopt;
}

// `known`: the generation of this run's map that it knows; 0: none. False: nothing yet.
bool JobRun::Join(uint64_t incarnation, int64_t known, proto::JoinJobReply& reply) {
  reply.set_term(environment_.term);
  if (over()) {
    reply.set_shut_down(true);
    return true;
  }
  const bool is_map_known = told_generation_ == job_.shard_map.generation && replicas_.lost.empty();
  if (closed() || !admitted_.contains(incarnation) || !TakesPart(incarnation) || !is_map_known) {
    return false;
  }
  const std::optional<size_t> worker = WorkerOf(incarnation);
  const bool works = worker.has_value() && !absent_[*worker];
  const JoiningGroups::Group* const joining = works ? nullptr : joining_.GroupOf(incarnation);
  if (!works && (joining == nullptr || plan::MayExchange(job_.job))) {
    return false;  // the others of its group are not known yet, or its peers
  }
  reply.set_ready(true);
  reply.set_run(job_.run);
  reply.set_workers(static_cast<int>(workers_.size()));
  const Member& member = works ? workers_[*worker] : *joining->Find(incarnation);
  if (!FillChange(known, member, reply)) {
    reply.set_job_id(job_.id);
    *reply.mutable_job() = plan::ToMessage(job_.job);
    reply.set_token_file(job_.token_file);
    reply.set_validation_file(job_.request.validation_file());
    *reply.mutable_model_files() = job_.request.model_files();
    if (job_.pipeline.has_value()) {
      *reply.mutable_pipeline() = *job_.pipeline;
    }
    FillServers(reply);
    FillMap(member, reply);
  }
  if (works) {
    const size_t group = groups_.GroupOf(*worker);
    reply.set_formation(formations_[*worker]);
    FillGroup(static_cast<int>(group), incarnation,
              std::span(workers_).subspan(groups_.WorkerAt(group, 0), groups_.stages()), reply);
    if (!reply.has_map_change() || !known_maps_.peers[*worker]) {
      FillPeers(reply);
    }
    return true;
  }
  reply.set_formation(joining->formation);
  FillGroup(static_cast<int>(groups_.groups()), incarnation, joining->workers, reply);
  return true;
}

void JobRun::FillGroup(int group, uint64_t incarnation, std::span<const Member> stages,
                       proto::JoinJobReply& reply) const {
  reply.set_group(group);
  reply.set_groups(std::max(group + 1, static_cast<int>(groups_.groups())));
  if (stages.size() == 1 && reply.has_map_change()) {
    return;  // it is that one
  }
  for (const Member& member : stages) {
    if (member.incarnation == incarnation) {
      reply.set_stage(reply.stages_size());
    }
    auto* address = reply.add_stages();
    address->set_index(member.index);
    address->set_address(member.address);
    address->set_incarnation(member.incarnation);
  }
}

std::optional<size_t> JobRun::WorkerOf(uint64_t incarnation) const {
  const auto found = worker_at_.find(incarnation);
  return found == worker_at_.end() ? std::nullopt : std::optional(found->second);
}

std::string JobRun::PlaceOf(uint64_t incarnation) const {
  const std::optional<size_t> worker = WorkerOf(incarnation);
  return worker.has_value() ? groups_.Place(*worker) : "";
}

bool JobRun::TakesPart(uint64_t incarnation) const {
  return WorkerOf(incarnation).has_value() || joining_.Has(incarnation) ||
         std::ranges::find(servers_, incarnation, &Member::incarnation) != servers_.end();
}

void JobRun::OnLost(const Member& member, const std::string& why) {
  gone_.insert(member.incarnation);
  LoseJoiner(member);
  closed() ? OnHolderLost(member) : Lose(member, why, /*asked=*/false);
}

void JobRun::Lose(const Member& member, const std::string& why, bool asked) {
  if (closed() || replicas_.lost.contains(member.incarnation)) {
    return;
  }
  if (TakesPart(member.incarnation)) {
    Record({{"event", asked ? "leaving" : "lost"},
            {"step", step_},
            {"member", NameOf(member)},
            {"reason", why}});
  }
  const LossDecision decision =
      DecideOnLoss(member, why,
                   {.place = PlaceOf(member.incarnation),
                    .takes_part = TakesPart(member.incarnation),
                    .ending = phase_ == Phase::kFinishing || stop_requested_,
                    .asked = asked,
                    .restores = job_.job.RestoresOnServerLoss(),
                    .replaced = IsReplaced(member),
                    .step = step_});
  switch (decision.what) {
    case LossDecision::What::kGoOn:
      LogWarning("{}", decision.message);
      return;
    case LossDecision::What::kGoOnWithout:
      LogWarning("{}; the job goes on without it", decision.message);
      last_lost_ = decision.message;
      member.role == proto::ROLE_SERVER ? LoseServer(member) : LoseWorker(member);
      return;
    case LossDecision::What::kSaveAndFail:
      failure_ = {.message = decision.message, .by_loss = decision.restarts, .asked = asked};
      LogError("{}; the job ends with a checkpoint of its last commit", decision.message);
      EndAfterCommit();
      return;
    case LossDecision::What::kFail:
      EndBy({.message = decision.message, .by_loss = decision.restarts});
      return;
  }
}

std::string JobRun::Remedy() const {
  return newest_checkpoint_.has_value()
             ? fmt::format("; go on from the checkpoint of step {} with --resume",
                           newest_checkpoint_->step)
             : "; there is no checkpoint yet, start the job again";
}

bool JobRun::IsLoss(const absl::Status& status) const {
  // Or a process that knows nothing of the job.
  return absl::IsNotFound(status) || IsAnotherProcess(status) || IsUnreachable(status);
}

bool JobRun::EndsBySuccessor(const absl::Status& status) const {
  if (!IsSuperseded(status) || SHOAL_PLANTED("successor-unheeded")) {
    return false;
  }
  environment_.superseded(status);
  return true;
}

void JobRun::OnServerError(int server, const absl::Status& status) {
  const Member& member = servers_[static_cast<size_t>(server)];
  if (replicas_.lost.contains(member.incarnation)) {
    return;
  }
  if (IsLoss(status)) {
    unreachable_.push_back(member);
    Lose(member, std::string(Message(status)), /*asked=*/false);
  } else {
    Fail(fmt::format("{} failed in step {}: {}", NameOf(member), step_, Message(status)));
  }
}

void JobRun::Tick() {
  const absl::Time now = environment_.clock.Now();
  if (closed()) {
    question_.has_value() ? StopAsking(now) : ReleaseAgain(now);
    return;
  }
  if (phase_ == Phase::kTakingOver) {
    AskAgain(now);
    return;
  }
  if (phase_ == Phase::kMoving && now >= replicas_.again) {
    replicas_.again = absl::InfiniteFuture();
    OpenStep();
    return;
  }
  if (phase_ == Phase::kWaiting && now >= NextTick()) {
    Fail(fmt::format(
        "still waiting for {} after {:.0f} s ({}): look at their logs for why they did not come",
        waiting_for_, absl::ToDoubleSeconds(job_.patience),
        job_.restarts > 0 ? "cluster.recovery_timeout_seconds" : "cluster.start_timeout_seconds"));
    return;
  }
  if (phase_ == Phase::kFinishing && now >= NextTick()) {
    Finish(interrupted_);
    return;
  }
  if (phase_ == Phase::kShort && now >= NextTick()) {
    SaveAndFail(fmt::format(
        "still waiting for {} after {:.0f} s (cluster.recovery_timeout_seconds){}", Missing(),
        job_.job.cluster.recovery_timeout_seconds, last_lost_.empty() ? "" : "; " + last_lost_));
    return;
  }
  if (phase_ == Phase::kRunning && now >= next_stall_notice_) {
    // A member that renews its lease but makes no progress looks well from outside: name it.
    std::string missing;
    for (size_t worker = 0; worker < workers_.size(); ++worker) {
      if (working_[worker]) {
        missing += (missing.empty() ? "" : ", ") + names_[worker];
      }
    }
    LogWarning("{} has been running for {:.0f} s; no report yet from {}",
               NameOfWork(step_, validating_), absl::ToDoubleSeconds(now - step_opened_), missing);
    next_stall_notice_ = now + kStallNotice;
  }
}

absl::Time JobRun::NextTick() const {
  switch (phase_) {
    case Phase::kWaiting:
      return waiting_since_.has_value() ? *waiting_since_ + job_.patience : absl::InfiniteFuture();
    case Phase::kTakingOver:
      return NextAsk();
    case Phase::kMoving:
      return replicas_.again;
    case Phase::kFinishing:
      return checkpoint_again_;
    case Phase::kOver:
      return question_.has_value() ? question_->until : NextRelease();
    case Phase::kShort:
      return short_since_ + absl::Seconds(job_.job.cluster.recovery_timeout_seconds);
    case Phase::kRunning:
      return next_stall_notice_;
    default:
      return absl::InfiniteFuture();
  }
}

void JobRun::Log(const absl::Status& status) const {
  if (!status.ok()) {
    LogWarning("{}", Message(status));
  }
}

}  // namespace shoal::server

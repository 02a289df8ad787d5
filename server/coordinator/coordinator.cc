#include "server/coordinator/coordinator.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "core/base/logging.h"
#include "core/base/net/refuses_connections.h"
#include "core/base/random.h"
#include "core/base/status.h"
#include "core/rpc/log_lines.h"

namespace shoal::server {
namespace {

constexpr double kMaxWaitSeconds = 30;
// How long the coordinator waits for watchers to hear of the end before it exits.
constexpr absl::Duration kWatcherPatience = absl::Seconds(5);
// How often a waiting watcher's connection is checked.
constexpr absl::Duration kWatchInterval = absl::Seconds(1);
// A timer later than this means that the process stood still, and that members' renewals wait
// unread.
constexpr absl::Duration kTimerInterval = absl::Milliseconds(200);

uint64_t RandomSeed() { return std::stoull(SecureToken().substr(0, 16), nullptr, 16); }

std::string Left(const SavedJob& job) {
  return fmt::format(
      "the coordinator ended before {} did: last commit {}, newest checkpoint {}", job.id,
      job.last_commit.has_value() ? fmt::format("step {}", job.last_commit->step) : "none",
      job.checkpoints.empty() ? "none" : job.checkpoints.back().path);
}

// That members keep who were told a job's.
absl::Duration LeaseOf(const SavedState& saved) {
  double seconds = 0;
  for (const SavedJob& job : saved.jobs) {
    proto::SubmitJobRequest request;
    if (job.run.has_value() && request.ParseFromString(job.request)) {
      seconds = std::max(seconds, request.job().cluster().lease_seconds());
    }
  }
  return absl::Seconds(seconds);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(
    const CoordinatorOptions& options, JobLoader loader, ServerClientFactory servers,
    std::unique_ptr<StateStore> store, const Clock& clock, Metrics& metrics) {
  SHOAL_RETURN_IF_ERROR(store->BeginTerm());
  SHOAL_ASSIGN_OR_RETURN(SavedState saved, store->Load());
  ForgetRunsThatAreOver(saved);
  std::unique_ptr<Coordinator> coordinator(new Coordinator(
      options, std::move(loader), std::move(servers), std::move(store), saved, clock, metrics));
  {
    absl::MutexLock lock(&coordinator->mutex_);
    coordinator->core_.Restore(saved.members);
  }
  const bool goes_on = options.stay || !saved.members.empty();
  for (const SavedJob& job : saved.jobs) {
    SHOAL_RETURN_IF_ERROR(coordinator->TakeUp(job, goes_on));
  }
  absl::MutexLock lock(&coordinator->mutex_);
  coordinator->core_.Begin();
  coordinator->Notice();
  return coordinator;
}

absl::Status Coordinator::TakeUp(SavedJob saved, bool goes_on) {
  if (TakeOutcomeOfEvents(saved)) {
    SHOAL_RETURN_IF_ERROR(store_->EndJob(saved.id, saved.outcome));
  }
  if (!saved.outcome.empty()) {
    const absl::Status remembered = goes_on ? Remember(saved) : absl::OkStatus();
    if (!remembered.ok()) {  // as of another version
      LogWarning("{}, which is over, is forgotten: {}", saved.id, Message(remembered));
    }
    return absl::OkStatus();
  }
  if (!goes_on || saved.request.empty()) {
    LogWarning("{}; submit the job again with --resume to go on", Left(saved));
    return store_->EndJob(saved.id, "the coordinator ended before it");
  }
  LogWarning("{}; it goes on from there", Left(saved));
  const absl::Status resumed = Resume(saved);
  if (!resumed.ok()) {
    LogError("{} cannot go on: {}", saved.id, Message(resumed));
    return store_->EndJob(saved.id, fmt::format("failed: {}", Message(resumed)));
  }
  return absl::OkStatus();
}

// Whoever follows it hears how it ended.
absl::Status Coordinator::Remember(const SavedJob& saved) {
  LoadedJob job;
  if (!job.request.ParseFromString(saved.request)) {
    return DataLoss("its record cannot be read");
  }
  SHOAL_ASSIGN_OR_RETURN(job.job, plan::FromMessage(job.request.job(), "the submitted job"));
  job.id = saved.id;
  job.run = saved.run.has_value() ? saved.run->run() : 0;
  job.last_step =
      job.request.stop_after_step() > 0 ? job.request.stop_after_step() : job.job.train.steps;
  absl::MutexLock lock(&mutex_);
  core_.Remember(std::move(job), saved);
  return absl::OkStatus();
}

absl::Status Coordinator::Resume(const SavedJob& saved) {
  proto::SubmitJobRequest request;
  if (!request.ParseFromString(saved.request)) {
    return DataLoss("its record cannot be read");
  }
  SHOAL_ASSIGN_OR_RETURN(LoadedJob job, loader_(request, /*workers=*/0));
  SHOAL_ASSIGN_OR_RETURN(std::optional<CompleteCheckpoint> newest, job.checkpoints->Newest());
  absl::MutexLock lock(&mutex_);
  return core_.Resume(std::move(job), std::move(newest), saved);
}

Coordinator::Coordinator(const CoordinatorOptions& options, JobLoader loader,
                         ServerClientFactory servers, std::unique_ptr<StateStore> store,
                         const SavedState& saved, const Clock& clock, Metrics& metrics)
    : loader_(std::move(loader)),
      encrypted_(options.encrypted),
      term_(saved.term),
      clock_(clock),
      store_(std::move(store)),
      metrics_(metrics),
      core_({.version = options.version,
             .lease = std::max(options.lease, LeaseOf(saved)),
             .seed = RandomSeed(),
             .issued = saved.incarnations,
             .cluster = saved.cluster,
             .term = saved.term},
            Environment(std::move(servers), options)),
      timer_thread_([this] { RunTimer(); }) {
  metrics_.term.Set(static_cast<double>(term_));
}

Coordinator::~Coordinator() { Stop(); }

JobEnvironment Coordinator::Environment(ServerClientFactory servers,
                                        const CoordinatorOptions& options) {
  return {.clock = clock_,
          .make_clients = std::move(servers),
          .store = *store_,
          .metrics = metrics_,
          .post = [this](const std::function<void()>& work) { Post(work); },
          .plan = [this](std::function<void()> work) { plan_thread_.Run(std::move(work)); },
          .disk = [this](std::function<void()> work) { disk_thread_.Run(std::move(work)); },
          .stays = options.stay,
          .durable = options.durable,
          .term = term_,
          .started = clock_.Now(),
          .superseded =
              [this](const absl::Status& why) {
                mutex_.AssertHeld();  // by whoever called the core
                superseded_ = why;
                Close();
              },
          .reached = options.reached};
}

void Coordinator::Post(const std::function<void()>& work) {
  absl::MutexLock lock(&mutex_);
  if (!stopping_) {
    work();
    Notice();
  }
}

void Coordinator::Notice() {
  if (core_.changes() != noticed_changes_) {
    noticed_changes_ = core_.changes();
    changed_.SignalAll();
  }
  if (core_.NextTick() < timer_target_) {
    timer_.SignalAll();
  }
  if (core_.ended()) {
    done_.SignalAll();
  }
}

void Coordinator::TakeLines() {
  proto::NewLines lines;
  rpc::AddLogLines(lines);
  core_.AddLog(lines);
}

void Coordinator::RunTimer() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    TakeLines();
    core_.MeasureLeases();
    timer_target_ = core_.NextTick();
    const absl::Time before = clock_.Now();
    const absl::Duration wait = std::min(timer_target_ - before, kTimerInterval);
    if (wait > absl::ZeroDuration()) {
      timer_.Wait(&mutex_, wait);
      const absl::Duration late = clock_.Now() - before - wait;
      if (late > kTimerInterval) {
        LogWarning("this process stood still for {:.1f} s; leases are longer by as much",
                   absl::ToDoubleSeconds(late));
        core_.ExtendLeases(late);
      }
      continue;
    }
    core_.Tick();
    Notice();
  }
}

absl::Status Coordinator::CheckOpen() const {
  return stopping_ ? Unavailable("the coordinator is stopping") : absl::OkStatus();
}

absl::StatusOr<proto::SubmitJobReply> Coordinator::SubmitJob(
    const proto::SubmitJobRequest& request) {
  int64_t workers = 0;
  {
    absl::MutexLock lock(&mutex_);
    workers = core_.workers();
  }
  SHOAL_ASSIGN_OR_RETURN(LoadedJob job, loader_(request, workers));
  SHOAL_RETURN_IF_ERROR(plan::EncryptsTensors(job.job.service, encrypted_).status());
  SHOAL_ASSIGN_OR_RETURN(std::optional<CompleteCheckpoint> newest, job.checkpoints->Newest());
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(CheckOpen());
  auto reply = core_.Submit(std::move(job), std::move(newest), request.resume());
  Notice();
  return reply;
}

absl::StatusOr<proto::StopJobReply> Coordinator::StopJob(const proto::StopJobRequest& request) {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(CheckOpen());
  SHOAL_RETURN_IF_ERROR(
      core_.Stop(request.job_id(), request.reason().empty() ? "asked to" : request.reason()));
  Notice();
  return proto::StopJobReply();
}

absl::StatusOr<proto::GetStatusReply> Coordinator::GetStatus(
    const proto::GetStatusRequest& request) {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(CheckOpen());
  return core_.Status(request.job_id());
}

absl::StatusOr<proto::ScaleReply> Coordinator::Scale(const proto::ScaleRequest& request) {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(CheckOpen());
  auto reply = core_.Scale(request);
  Notice();
  return reply;
}

absl::StatusOr<proto::ListJobsReply> Coordinator::ListJobs(const proto::ListJobsRequest&) {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(CheckOpen());
  return core_.List();
}

absl::StatusOr<proto::ReadLogReply> Coordinator::ReadLog(const proto::ReadLogRequest& request) {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(CheckOpen());
  TakeLines();
  return core_.ReadLog(request);
}

template <typename Request, typename Reply>
absl::StatusOr<Reply> Coordinator::Ask(
    const Request& request, absl::StatusOr<Reply> (CoordinatorCore::*method)(const Request&)) {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(CheckOpen());
  auto reply = (core_.*method)(request);
  Notice();
  return reply;
}

absl::StatusOr<proto::RegisterReply> Coordinator::Register(const proto::RegisterRequest& request) {
  std::string address;
  {
    absl::MutexLock lock(&mutex_);
    address = core_.AddressToTakeOver(request);
  }
  if (!address.empty() && RefusesConnections(address)) {
    absl::MutexLock lock(&mutex_);
    SHOAL_RETURN_IF_ERROR(CheckOpen());
    if (core_.AddressToTakeOver(request) == address) {
      core_.TakeOver(request);
    }
  }
  return Ask(request, &CoordinatorCore::Register);
}

absl::StatusOr<proto::RenewLeaseReply> Coordinator::RenewLease(
    const proto::RenewLeaseRequest& request) {
  return Ask(request, &CoordinatorCore::Renew);
}

absl::StatusOr<rpc::HeldCall<proto::HoldConnectionReply>> Coordinator::HoldConnection(
    const proto::HoldConnectionRequest& request) {
  absl::MutexLock lock(&mutex_);
  SHOAL_RETURN_IF_ERROR(CheckOpen());
  SHOAL_RETURN_IF_ERROR(core_.OnConnected(request.incarnation()));
  return rpc::HeldCall<proto::HoldConnectionReply>{
      .on_end = [this, incarnation = request.incarnation()] {
        Post([this, incarnation] {
          mutex_.AssertHeld();  // by whoever called the core
          core_.OnDisconnected(incarnation);
        });
      }};
}

absl::StatusOr<proto::LeaveReply> Coordinator::Leave(const proto::LeaveRequest& request) {
  return Ask(request, &CoordinatorCore::Leave);
}

absl::StatusOr<proto::DrawMicrobatchReply> Coordinator::DrawMicrobatch(
    const proto::DrawMicrobatchRequest& request) {
  return Ask(request, &CoordinatorCore::Draw);
}

template <typename Request, typename Reply>
absl::StatusOr<std::optional<Reply>> Coordinator::WaitFor(
    Request request,
    absl::StatusOr<std::optional<Reply>> (CoordinatorCore::*method)(const Request&)) {
  const double seconds = std::clamp(request.wait_seconds(), 0.0, kMaxWaitSeconds);
  const absl::Time deadline = clock_.Now() + absl::Seconds(seconds);
  absl::MutexLock lock(&mutex_);
  bool expired = false;
  while (true) {
    SHOAL_RETURN_IF_ERROR(CheckOpen());
    auto reply = (core_.*method)(request);
    Notice();
    if (!reply.ok() || reply->has_value() || expired) {
      return reply;
    }
    // The first look takes the worker's report. While waiting it only asks.
    if constexpr (requires { request.clear_finished(); }) {
      request.clear_finished();
    }
    expired = changed_.Wait(&mutex_, deadline - clock_.Now());
  }
}

absl::StatusOr<proto::JoinJobReply> Coordinator::JoinJob(const proto::JoinJobRequest& request) {
  SHOAL_ASSIGN_OR_RETURN(auto reply, WaitFor(request, &CoordinatorCore::Join));
  proto::JoinJobReply nothing;
  nothing.set_term(term_);
  return reply.value_or(nothing);
}

absl::StatusOr<proto::NextStepReply> Coordinator::NextStep(const proto::NextStepRequest& request) {
  SHOAL_ASSIGN_OR_RETURN(auto reply, WaitFor(request, &CoordinatorCore::Next));
  if (!reply.has_value()) {
    proto::NextStepReply wait;
    wait.set_wait(true);
    wait.set_term(term_);
    return wait;
  }
  return *std::move(reply);
}

absl::StatusOr<std::shared_ptr<EventLog>> Coordinator::AwaitEvents(const std::string& job_id,
                                                                   const rpc::JobEvents& watcher) {
  while (!stopping_ && !watcher.gone()) {
    auto events = core_.Events(job_id);
    if (events.ok() || !absl::IsFailedPrecondition(events.status())) {
      return events;
    }
    changed_.Wait(&mutex_, kWatchInterval);
  }
  return Unavailable("the coordinator is stopping");
}

absl::Status Coordinator::Follow(EventLog& events, int64_t seen, const rpc::JobEvents& watcher) {
  bool ended = false;
  bool closed = false;
  while (!ended && !closed && !watcher.gone()) {
    closed = events.closed();  // before the last read
    for (const proto::JobEvent& event : events.Wait(seen, kWatchInterval)) {
      seen = event.number();
      ended = EndsJob(event);
      if (!watcher.write(event)) {
        break;
      }
    }
  }
  return ended ? absl::OkStatus() : Unavailable("the coordinator is stopping");
}

absl::Status Coordinator::WatchJob(const proto::WatchJobRequest& request,
                                   const rpc::JobEvents& watcher) {
  absl::StatusOr<std::shared_ptr<EventLog>> events;
  {
    absl::MutexLock lock(&mutex_);
    ++watchers_;
    events = AwaitEvents(request.job_id(), watcher);
  }
  const absl::Status status =
      events.ok()
          ? Follow(**events, (*events)->NewAfter(request.after_event(), request.term()), watcher)
          : events.status();
  absl::MutexLock lock(&mutex_);
  --watchers_;
  done_.SignalAll();
  return status;
}

bool Coordinator::Done() const { return core_.ended() && !core_.members_to_leave(); }

void Coordinator::WaitUntilDone() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_ && !Done()) {
    done_.Wait(&mutex_, absl::InfiniteDuration());
  }
  const absl::Time patience = clock_.Now() + kWatcherPatience;
  while (!stopping_ && watchers_ > 0) {
    if (done_.Wait(&mutex_, patience - clock_.Now())) {
      return;
    }
  }
}

void Coordinator::Interrupt(const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  if (!stopping_) {
    core_.End(reason);
  }
  Notice();
  done_.SignalAll();
}

absl::Status Coordinator::superseded() const {
  absl::MutexLock lock(&mutex_);
  return superseded_;
}

void Coordinator::Close() {
  stopping_ = true;
  changed_.SignalAll();
  timer_.SignalAll();
  done_.SignalAll();
  core_.CloseEvents();
}

void Coordinator::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    Close();
  }
  if (timer_thread_.joinable()) {
    timer_thread_.join();
  }
  plan_thread_.Stop();
  disk_thread_.Stop();
  std::vector<std::shared_ptr<ServerClient>> servers;
  {
    absl::MutexLock lock(&mutex_);
    servers = core_.ReleaseServers();
  }
  servers.clear();  // cancels calls in flight and waits for them, without the lock
}

}  // namespace shoal::server

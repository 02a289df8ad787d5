#include "server/coordinator/testing/sim_world.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/logging.h"
#include "core/base/status.h"

namespace shoal::server::testing {

namespace {

// Identifies a stage's pushes for these samples: its part of the model.
std::vector<int64_t> OfStage(std::vector<int64_t> samples, int stage) {
  for (int64_t& sample : samples) {
    sample += int64_t{1'000'000'000} * stage;
  }
  return samples;
}

}  // namespace

SimWorld::SimWorld(const SimOptions& options, FakeDisk& fake_disk)
    : loop(options.seed),
      disk(fake_disk),
      servers(loop, fake_disk, *store, options.servers),
      steps(options.seed, options.samples),
      options_(options),
      coordinator_metrics_(metrics),
      server_processes_(static_cast<size_t>(options.servers)),
      workers_(static_cast<size_t>(options.workers)) {
  InitLogging({.process = "simulation", .level = "off"});  // thousands of runs
  const auto later = [this](std::function<void()> work) {
    loop.After(loop.ShortDelay(), [this, work = std::move(work)] {
      servers.hook("plan", 0);
      work();
    });
  };
  core_ = std::make_unique<CoordinatorCore>(
      MembershipOptions{.version = "1", .lease = absl::Seconds(10), .seed = options.seed},
      JobEnvironment{.clock = loop.clock(),
                     .make_clients = servers.factory(),
                     .store = *store,
                     .metrics = coordinator_metrics_,
                     .post = [](const std::function<void()>& work) { work(); },
                     .plan = later,
                     .disk = later});
  loop.After(loop.ShortDelay(), [this] { Submit(); });
  for (int index = 0; index < options.servers; ++index) {
    // Staggered, so that server k of the job is process k.
    loop.After(absl::Milliseconds(index + 1), [this, index] { RegisterServer(index); });
  }
  for (int index = 0; index < options.workers; ++index) {
    loop.After(absl::Milliseconds(index + 1), [this, index] { RegisterWorker(index); });
  }
}

void SimWorld::Submit() {
  LoadedJob job = MakeFakeJob({.steps = options_.steps,
                               .servers = options_.servers,
                               .workers = options_.workers,
                               .samples = options_.samples,
                               .seed = options_.seed},
                              disk);
  job.job.cluster.pipeline.stages = options_.stages;
  job.job.checkpoint.every_steps = options_.checkpoint_every;
  job.job.checkpoint.every_seconds = options_.checkpoint_seconds;
  job.job.plan.assignment = options_.draw ? plan::Assignment::kDynamic : plan::Assignment::kAuto;
  job.job.train.synchronization =
      options_.layer ? plan::Synchronization::kLayer : plan::Synchronization::kStep;
  job.trace = options_.trace;
  job.last_step = options_.stop_after > 0 ? options_.stop_after : options_.steps;
  auto newest = job.checkpoints->Newest();
  const auto reply = core_->Submit(std::move(job), *std::move(newest), options_.resume);
  SHOAL_CHECK(reply.ok());
  job_id_ = reply->job_id();
}

void SimWorld::RegisterServer(int index) {
  proto::RegisterRequest request;
  request.set_role(proto::ROLE_SERVER);
  request.set_address(fmt::format("server:{}", index));
  request.set_host("sim");
  request.set_pid(100 + index);
  Register(server_processes_[static_cast<size_t>(index)], std::move(request));
}

void SimWorld::RegisterWorker(int index) {
  proto::RegisterRequest request;
  request.set_role(proto::ROLE_WORKER);
  request.set_host("sim");
  request.set_pid(200 + index);
  if (options_.addresses) {
    request.set_address(fmt::format("worker:{}", index));
  }
  if (options_.hosts_and_loopback) {
    request.set_host(fmt::format("sim-{}", index));
    request.set_address("127.0.0.1:70");
  }
  Register(workers_[static_cast<size_t>(index)], std::move(request));
  Ask(index);
}

void SimWorld::Register(Process& process, proto::RegisterRequest request) {
  if (!process.alive) {
    return;
  }
  request.set_version("1");
  request.mutable_facts()->set_cpu("simulated");
  process.incarnation = core_->Register(request)->incarnation();
  process.present = true;
  Renew(process);
}

void SimWorld::Renew(Process& process) {
  loop.After(absl::Seconds(3), [this, &process] {
    if (!process.alive || !process.present) {
      return;
    }
    proto::RenewLeaseRequest request;
    request.set_incarnation(process.incarnation);
    const auto reply = core_->Renew(request);
    if (!reply.ok() || reply->shut_down()) {
      proto::LeaveRequest leave;
      leave.set_incarnation(process.incarnation);
      process.present = false;
      static_cast<void>(core_->Leave(leave));
      return;
    }
    Renew(process);
  });
}

// Polls as a worker: JoinJob until it is ready, then NextStep with the last step's report.
void SimWorld::Ask(int index) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  if (!worker.alive || !worker.present) {
    return;
  }
  worker.waiting = false;
  if (!worker.joined) {
    proto::JoinJobRequest request;
    request.set_incarnation(worker.incarnation);
    const auto reply = core_->Join(request);
    SHOAL_CHECK(reply.ok());
    if (!reply->has_value()) {
      worker.waiting = true;
    } else if ((*reply)->ready()) {
      worker.joined = true;
      if ((*reply)->job_id() != job_id_) {
        servers.Violation(fmt::format("worker {} joins {}", index, (*reply)->job_id()));
      }
      worker.group = (*reply)->group();
      worker.stage = (*reply)->stage();
      const auto& stages = (*reply)->stages();
      if (stages.size() != options_.stages ||
          stages[worker.stage].incarnation() != worker.incarnation) {
        servers.Violation(fmt::format("worker {} is not where its group says", index));
      }
      CheckPeers(index, **reply);
      loop.After(loop.ShortDelay(), [this, index] { Ask(index); });
    }
    return;
  }
  proto::NextStepRequest request;
  request.set_job_id(job_id_);
  request.set_incarnation(worker.incarnation);
  if (worker.report.has_value()) {
    *request.mutable_finished() = *worker.report;
  }
  const auto reply = core_->Next(request);
  SHOAL_CHECK(reply.ok());
  if (!reply->has_value()) {
    worker.waiting = true;
    return;
  }
  if (Chance(options_.lost_reply)) {
    loop.After(absl::Seconds(1), [this, index] { Ask(index); });
    return;
  }
  if ((*reply)->has_work()) {
    ++works_given_;
    servers.hook("work", index);
    Work(index, (*reply)->work());
  }
}

// Checks that workers that may exchange directly know each other's addresses, or why they cannot.
void SimWorld::CheckPeers(int index, const proto::JoinJobReply& reply) {
  const bool wanted = options_.layer && options_.workers > 1;
  const bool reachable = options_.addresses && !options_.hosts_and_loopback;
  if (reply.peers_size() != (wanted && reachable ? options_.workers : 0) ||
      reply.without_peers().empty() != (!wanted || reachable)) {
    servers.Violation(fmt::format("worker {} was told of {} peers, and: {}", index,
                                  reply.peers_size(), reply.without_peers()));
  }
}

// Checks that all workers of a group get the same work, in the same order.
void SimWorld::CheckGroup(int index, const proto::StepWork& work) {
  const Worker& worker = workers_[static_cast<size_t>(index)];
  const auto [first, fresh] =
      given_.try_emplace({work.step(), work.attempt(), worker.group}, work.SerializeAsString());
  if (!fresh && first->second != work.SerializeAsString()) {
    servers.Violation(
        fmt::format("worker {} got other work than its group in step {}", index, work.step()));
  }
}

void SimWorld::Work(int index, const proto::StepWork& work) {
  CheckGroup(index, work);
  proto::FinishedReport report;
  report.set_step(work.step());
  report.set_attempt(work.attempt());
  for (int server = 0; server < servers.count(); ++server) {
    report.add_pushes(0);
  }
  const bool slow = Chance(options_.slow_worker);
  loop.After(slow ? absl::Milliseconds(300) : loop.ShortDelay(),
             [this, index, work, report] { PushAndReport(index, work, 0, report); });
}

// Pushes one microbatch after the other to every server, then reports.
void SimWorld::PushAndReport(int index, const proto::StepWork& work, size_t microbatch,
                             proto::FinishedReport report, int64_t next_draw) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  if (!worker.alive) {
    return;
  }
  report.set_peak_flops(kPeakFlops);
  if (microbatch == static_cast<size_t>(work.microbatches_size())) {
    if (work.draw() && !Chance(options_.early_report)) {
      DrawNext(index, work, next_draw, report);
    } else {
      Report(index, report);
    }
    return;
  }
  const auto& given = work.microbatches(static_cast<int>(microbatch)).samples();
  const std::vector<int64_t> samples(given.begin(), given.end());
  for (int server = 0; server < servers.count(); ++server) {
    if (servers.Push(server, worker.incarnation, work.step(), work.attempt(),
                     OfStage(samples, worker.stage))) {
      report.set_pushes(server, report.pushes(server) + 1);
    } else {
      report.set_failed(true);
      report.set_message("push refused");
    }
  }
  for (const int64_t sample : samples) {
    if (worker.stage == options_.stages - 1) {
      report.set_loss_sum(report.loss_sum() + FakeSteps::Loss(sample));
    }
    report.set_target_tokens(report.target_tokens() + FakeSteps::Targets(sample));
    report.set_tokens(report.tokens() + 10);
  }
  report.set_microbatches(report.microbatches() + 1);
  const absl::Duration took = loop.ShortDelay();
  if (!samples.empty()) {
    proto::MicrobatchTime& time = *report.add_times();
    time.set_tokens(10 * static_cast<int64_t>(samples.size()));
    time.set_squared_tokens(100 * static_cast<double>(samples.size()));
    time.set_seconds(absl::ToDoubleSeconds(took));
    report.set_busy_seconds(report.busy_seconds() + time.seconds());
  }
  if (work.trace()) {
    report.add_spans()->set_microbatch(static_cast<int32_t>(microbatch));
  }
  loop.After(took, [this, index, work, microbatch, report, next_draw] {
    PushAndReport(index, work, microbatch + 1, report, next_draw);
  });
}

// Draws until nothing is left; repeats a request whose answer is lost.
void SimWorld::DrawNext(int index, proto::StepWork work, int64_t number,
                        proto::FinishedReport report) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  if (!worker.alive) {
    return;
  }
  proto::DrawMicrobatchRequest request;
  request.set_job_id(job_id_);
  request.set_incarnation(worker.incarnation);
  request.set_step(work.step());
  request.set_attempt(work.attempt());
  request.set_number(number);
  const auto reply = core_->Draw(request);
  if (!reply.ok()) {
    report.set_failed(true);
    report.set_message(std::string(Message(reply.status())));
    Report(index, report);
    return;
  }
  if (Chance(options_.lost_reply)) {
    loop.After(absl::Seconds(1),
               [this, index, work, number, report] { DrawNext(index, work, number, report); });
    return;
  }
  if (reply->none()) {
    Report(index, report);
    return;
  }
  ++drawn_;
  *work.add_microbatches() = reply->microbatch();
  const auto drawn = static_cast<size_t>(work.microbatches_size()) - 1;
  loop.After(loop.ShortDelay(), [this, index, work, drawn, report, number] {
    PushAndReport(index, work, drawn, report, number + 1);
  });
}

void SimWorld::Tell(proto::FinishedReport& report) {
  if (report.step() == 2 && loss_of_step_2 != 0) {
    report.set_loss_sum(loss_of_step_2);
  }
  if (report.step() != lie_step || lie == Lie::kNone || lies_left <= 0) {
    return;
  }
  --lies_left;
  switch (lie) {
    case Lie::kNone:
      break;
    case Lie::kTargets:
      report.set_target_tokens(report.target_tokens() + 1);
      break;
    case Lie::kMicrobatches:
      report.set_microbatches(report.microbatches() + 1);
      break;
    case Lie::kPushes:
      report.set_pushes(0, report.pushes(0) + 1);
      break;
    case Lie::kServers:
      report.add_pushes(0);
      break;
  }
}

void SimWorld::Report(int index, proto::FinishedReport report) {
  Worker& worker = workers_[static_cast<size_t>(index)];
  if (index == 0) {
    Tell(report);
  }
  if (Chance(options_.failed_report)) {
    report.set_failed(true);
    report.set_message("injected");
  }
  worker.report = report;
  if (Chance(options_.repeated_report)) {
    loop.After(loop.ShortDelay() * 5, [this, &worker, report] {
      proto::NextStepRequest request;  // a late copy; its answer is ignored
      request.set_job_id(job_id_);
      request.set_incarnation(worker.incarnation);
      *request.mutable_finished() = report;
      static_cast<void>(core_->Next(request));
    });
  }
  Ask(index);
}

void SimWorld::WakeWaiting() {
  if (core_->changes() == seen_changes_) {
    return;
  }
  seen_changes_ = core_->changes();
  for (size_t index = 0; index < workers_.size(); ++index) {
    if (workers_[index].waiting) {
      workers_[index].waiting = false;
      loop.After(loop.ShortDelay(), [this, index] { Ask(static_cast<int>(index)); });
    }
  }
}

bool SimWorld::Run() {
  constexpr int kMaxEvents = 200000;
  const absl::Time limit = loop.clock().Now() + absl::Hours(1);
  for (int count = 0; count < kMaxEvents; ++count) {
    if (core_->ended() && over_at == absl::Time()) {
      over_at = loop.clock().Now();
    }
    if (core_->ended() && !core_->members_to_leave()) {
      return true;
    }
    if (std::min(loop.NextTime(), core_->NextTick()) > limit) {
      return false;
    }
    if (core_->NextTick() <= loop.NextTime()) {
      loop.AdvanceTo(core_->NextTick());
      core_->Tick();
    } else {
      loop.RunNext();
    }
    WakeWaiting();
  }
  return false;
}

std::vector<std::string> SimWorld::RunAndCheck() {
  const bool ended = Run();
  std::vector<std::string> found = Violations();
  if (!ended) {
    found.emplace_back("it hangs");
  }
  return found;
}

void SimWorld::At(const std::string& point, int nth, std::function<void()> action) {
  servers.hook = [=, count = 0](const std::string& reached, int) mutable {
    if (reached == point && ++count == nth) {
      action();
    }
  };
}

void SimWorld::KillServer(int index) {
  servers.server(index).alive = false;
  server_processes_[static_cast<size_t>(index)].alive = false;
}

void SimWorld::KillWorker(int index) { workers_[static_cast<size_t>(index)].alive = false; }

std::vector<proto::JobEvent> SimWorld::events() const {
  const auto log = core_->Events(job_id_);
  return log.ok() ? (*log)->After(0) : std::vector<proto::JobEvent>();
}

std::vector<proto::StepEvent> SimWorld::step_events() const {
  std::vector<proto::StepEvent> found;
  for (const proto::JobEvent& event : events()) {
    if (event.has_step()) {
      found.push_back(event.step());
    }
  }
  return found;
}

std::optional<proto::DoneEvent> SimWorld::done() const {
  const auto all = events();
  return !all.empty() && all.back().has_done() ? std::make_optional(all.back().done())
                                               : std::nullopt;
}

std::optional<proto::FailedEvent> SimWorld::failed() const {
  const auto all = events();
  return !all.empty() && all.back().has_failed() ? std::make_optional(all.back().failed())
                                                 : std::nullopt;
}

std::vector<std::string> SimWorld::Violations() const {
  std::vector<std::string> found = servers.violations();
  // Steps are reported once each, in order, with the planned loss, whichever worker ran them.
  int64_t previous = 0;
  for (const proto::StepEvent& event : step_events()) {
    if (previous != 0 && event.step() != previous + 1) {
      found.push_back(fmt::format("step {} was told after step {}", event.step(), previous));
    }
    previous = event.step();
    double loss = 0;
    double targets = 0;
    for (const int64_t sample : steps.Samples(event.step())) {
      loss += FakeSteps::Loss(sample);
      targets += static_cast<double>(FakeSteps::Targets(sample));
    }
    if (std::abs(event.loss() - loss / targets) > 1e-12) {
      found.push_back(fmt::format("loss of step {} is {} instead of {}", event.step(), event.loss(),
                                  loss / targets));
    }
  }
  // Every committed step has every sample exactly once for each stage, at every server.
  for (int index = 0; index < servers.count(); ++index) {
    for (const auto& [step, samples] : servers.server(index).committed) {
      std::multiset<int64_t> expected;
      for (int stage = 0; stage < options_.stages; ++stage) {
        const std::vector<int64_t> part = OfStage(steps.Samples(step), stage);
        expected.insert(part.begin(), part.end());
      }
      if (samples != expected) {
        found.push_back(fmt::format(
            "server {} committed step {} with other samples than its minibatch", index, step));
      }
    }
  }
  if (done().has_value()) {
    const int64_t last = options_.stop_after > 0 ? options_.stop_after : options_.steps;
    if (!done()->interrupted() && done()->step() != last) {
      found.push_back(fmt::format("done at step {} of {}", done()->step(), last));
    }
    if (done()->step() > 0 && !disk.complete.contains(done()->step())) {
      found.push_back(fmt::format("done at step {} without its checkpoint", done()->step()));
    }
  }
  if (!done().has_value() && !failed().has_value()) {
    found.emplace_back("the job has no end");
  }
  return found;
}

}  // namespace shoal::server::testing

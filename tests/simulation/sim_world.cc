#include "tests/simulation/sim_world.h"

#include <algorithm>

#include "core/base/logging.h"
#include "core/base/status.h"
#include "tests/simulation/process_ids.h"

namespace shoal::simulation {

using server::testing::FakeDisk;
using server::testing::FakeSteps;

SimWorld::SimWorld(const SimOptions& options, FakeDisk& fake_disk)
    : SimWorld(options, fake_disk, Faults::Draw(options.seed, {})) {}

SimWorld::SimWorld(const SimOptions& options, FakeDisk& fake_disk, Faults faults)
    : context_(options.seed, std::move(faults), options.print),
      loop(context_.loop),
      hook(context_.hook),
      disk(fake_disk),
      servers(
          context_, [this](const std::string& directory) -> SimJob& { return *JobIn(directory); },
          options.servers + options.spare_servers),
      options_(options),
      jobs_(MakeJobs()),
      steps(jobs_.front()->steps()),
      coordinator_(context_, options_, *store, servers, Loader(*store), metrics),
      command_(context_, coordinator_),
      invariants_(context_, servers) {
  static const bool quiet = [] {
    InitLogging({.role = "simulation", .level = "off"});  // thousands of runs
    return true;
  }();
  static_cast<void>(quiet);
  Observe();
  coordinator_.Start();
  loop.After(context_.ShortDelay(), [this] {
    for (const auto& job : jobs_) {
      command_.Submit(*job);
    }
  });
  MakeMembers();
  for (const Fault& fault : context_.faults.moments()) {
    loop.At(fault.at, [this, fault] { Apply(fault); });
  }
}

SimCoordinator::Loader SimWorld::Loader(SimStore& of) {
  return [this, &of](const proto::SubmitJobRequest& request) {
    SimJob& job = *JobIn(request.job().checkpoint().directory());
    return job.Load(request, of.refuse);
  };
}

std::vector<std::unique_ptr<SimJob>> SimWorld::MakeJobs() {
  std::vector<std::unique_ptr<SimJob>> jobs;
  for (int number = 0; number < options_.jobs; ++number) {
    if (number > 0) {
      more_disks_.push_back(std::make_unique<FakeDisk>());
    }
    jobs.push_back(
        std::make_unique<SimJob>(options_, number, number == 0 ? disk : *more_disks_.back()));
  }
  return jobs;
}

SimJob* SimWorld::JobIn(const std::string& directory) {
  const auto found = std::ranges::find(
      jobs_, directory, [](const auto& job) -> const auto& { return job->directory(); });
  return found == jobs_.end() ? nullptr : found->get();
}

void SimWorld::MakeMembers() {
  for (int index = 0; index < servers.count(); ++index) {
    server_members_.push_back(std::make_unique<SimMember>(
        context_, options_, coordinator_, servers.process(index), proto::ROLE_SERVER, index));
  }
  for (int index = 0; index < options_.workers + options_.spares; ++index) {
    auto process =
        std::make_unique<SimProcess>(loop, WorkerProcess(index), fmt::format("worker-{}", index));
    workers_.push_back(std::make_unique<SimWorker>(context_, options_, coordinator_, servers,
                                                   std::move(process), index, observer_));
  }
  ForEachMember([this](SimMember& member) {
    loop.After(absl::Milliseconds(member.index() + 1), [&member] { member.Start(); });
    member.on_registered = [this, &member] {
      invariants_.OnRegistered(member.process().id(), member.process().life(),
                               member.incarnation());
      lives_[member.incarnation()] = {&member.process(), member.process().life()};
    };
  });
}

void SimWorld::ForEachMember(const std::function<void(SimMember&)>& visit) {
  for (const auto& member : server_members_) {
    visit(*member);
  }
  for (const auto& worker : workers_) {
    visit(*worker);
  }
}

void SimWorld::Observe() {
  observer_.on_join = [this](int index, const proto::JoinJobReply& reply) { OnJoin(index, reply); };
  observer_.on_work = [this](int index, const proto::StepWork& work) { OnWork(index, work); };
  observer_.lives = [this](const proto::WorkerAddress& other) {
    const auto found = lives_.find(other.incarnation());
    return found == lives_.end() ||  // it does not know of its incarnation yet
           (found->second.first->alive() && found->second.first->life() == found->second.second);
  };
  observer_.on_draw = [this] { ++drawn_; };
  observer_.before_report = [this](int index, proto::FinishedReport& report) {
    Tell(index, report);
  };
  servers.on_configured = [this](int index) { invariants_.OnConfigured(index); };
  servers.on_committed = [this](int index) { invariants_.OnCommitted(index); };
  servers.on_begun = [this](int index) { invariants_.OnBegun(index); };
  servers.on_pushed = [this](int index, uint64_t incarnation) {
    invariants_.OnPushed(index, incarnation);
  };
  servers.on_obeyed = [this](int index, int64_t term) { invariants_.OnObeyed(index, term); };
  Observe(coordinator_, *store);
}

void SimWorld::Observe(SimCoordinator& coordinator, SimStore& records) {
  records.on_commit = [this, &coordinator](const std::string& id,
                                           const server::CommitRecord& record) {
    invariants_.OnRecorded(id, record, coordinator.moved_bytes());
  };
  records.on_run = [this](const std::string& id, const proto::SavedRun& run) {
    invariants_.OnRunSaved(id, run);
  };
  coordinator.on_started = [this, &coordinator](int64_t term) {
    invariants_.OnStarted(term, coordinator.moved_bytes());
  };
  coordinator.on_stopped = [this](int64_t term, const std::string& id) {
    invariants_.OnStopped(term, id);
  };
  coordinator.on_came_back = [this](int64_t term, uint64_t incarnation) {
    invariants_.OnCameBack(term, incarnation);
  };
  coordinator.on_answered = [this](int64_t term, uint64_t incarnation, const absl::Status& status) {
    invariants_.OnAnswered(term, incarnation, status);
  };
}

// Workers that may exchange directly know each other's addresses, or why they cannot.
void SimWorld::OnJoin(int index, const proto::JoinJobReply& reply) {
  invariants_.OnJoined(worker(index).process().name(), worker(index).incarnation(), reply);
  const auto& stages = reply.stages();
  if (stages.size() != options_.stages ||
      stages[reply.stage()].incarnation() != worker(index).incarnation()) {
    context_.Violation(fmt::format("worker {} is not where its group says", index));
  }
  if (reply.workers() > options_.workers) {
    context_.Violation(
        fmt::format("{} workers take part in a job of {}", reply.workers(), options_.workers));
  }
  const bool wanted = options_.layer && !options_.exact && reply.workers() > 1;
  const bool reachable = options_.addresses && !options_.hosts_and_loopback;
  if (reply.peers_size() != (wanted && reachable ? reply.workers() : 0) ||
      reply.without_peers().empty() != (!wanted || reachable)) {
    context_.Violation(fmt::format("worker {} was told of {} peers, and: {}", index,
                                   reply.peers_size(), reply.without_peers()));
  }
  for (const proto::ServerAddress& address : reply.servers()) {
    const int number = ServerAt(address.address());
    const SimHostedJob* hosted = servers.server(number).hosted();
    // An earlier coordinator does not know what its successor has changed, and a server that was
    // started again at its address may have been configured by a call that came late. One that left
    // and came again by a later map knows nobody of an answer that comes late.
    if (reply.term() == coordinator().term() && servers.process(number).life() == 1 &&
        hosted != nullptr && hosted->request().job_id() == reply.job_id() &&
        hosted->request().run() == reply.run() &&
        hosted->request().shard_map().generation() <= reply.shard_map().generation() &&
        !hosted->core->HasAdmitted(worker(index).incarnation())) {
      context_.Violation(fmt::format("worker {} hears of server {}, which does not know it", index,
                                     address.index()));
    }
  }
}

// All workers of a group get the same work, in the same order.
void SimWorld::OnWork(int index, const proto::StepWork& work) {
  ++works_given_;
  hook("work", index);
  if (options_.stages == 1) {
    return;
  }
  const SimWorker& taker = worker(index);
  proto::StepWork same = work;
  same.clear_slot();
  const auto [first, fresh] =
      given_.try_emplace({taker.run_name(), work.step(), work.attempt(), work.round(),
                          taker.first_stage(), taker.formation()},
                         same.SerializeAsString());
  if (!fresh && first->second != same.SerializeAsString()) {
    context_.Violation(
        fmt::format("worker {} got other work than its group in step {}", index, work.step()));
  }
}

void SimWorld::Tell(int index, proto::FinishedReport& report) {
  if (index != 0 || report.packs_size() == 0) {
    return;
  }
  if (report.step() == 2 && loss_of_step_2 != 0) {
    report.mutable_packs(0)->set_loss_sum(loss_of_step_2);
  }
  if (report.step() != lie_step || lie == Lie::kNone || lies_left <= 0) {
    return;
  }
  --lies_left;
  switch (lie) {
    case Lie::kNone:
      break;
    case Lie::kTargets:
      report.mutable_packs(0)->set_targets(report.packs(0).targets() + 1);
      break;
    case Lie::kMicrobatches:
      report.mutable_packs()->RemoveLast();
      break;
    case Lie::kForeign:
      report.add_packs()->set_number(100000);
      break;
    case Lie::kNeighbour:
      report.clear_packs();
      report.set_failed(true);
      report.set_by_neighbour(true);
      report.set_message("a stage closed the connection");
      break;
  }
}

bool SimWorld::Over() {
  server::CoordinatorCore* core = coordinator().core();
  if (options_.stays) {
    return core != nullptr && command_.AllOver() && std::ssize(command_.jobs()) == options_.jobs &&
           std::ranges::all_of(core->List().jobs(), &proto::JobSummary::over);
  }
  if (core != nullptr && core->ended()) {
    over_at = over_at == absl::Time() ? loop.Now() : over_at;
    return !core->members_to_leave();
  }
  bool alive = !command_.AllOver() || command_.jobs().empty() ||
               (core != nullptr && core->List().jobs_size() > 0);
  if (!alive && core != nullptr) {
    return true;  // the job never came
  }
  if (!alive) {
    ForEachMember([&alive](SimMember& member) { alive = alive || member.process().alive(); });
  }
  return !alive;
}

bool SimWorld::Run() {
  constexpr int64_t kMaxEvents = 2'000'000;
  const Nanoseconds limit = loop.now() + ToNanoseconds(options_.limit);
  while (!Over()) {
    if (++run_events_ > kMaxEvents || loop.NextTime() > limit) {
      return false;
    }
    loop.RunNext();
  }
  return true;
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
  hook = [=, before = hook, count = 0](const char* reached, int index) mutable {
    before(reached, index);
    if (reached == point && ++count == nth) {
      action();
    }
  };
}

std::vector<proto::JobEvent> SimWorld::events() {
  const auto log = core().Events(command_.jobs().front().id);
  return log.ok() ? (*log)->After(0) : std::vector<proto::JobEvent>();
}

std::vector<proto::StepEvent> SimWorld::step_events() {
  std::vector<proto::StepEvent> found;
  for (const proto::JobEvent& event : events()) {
    if (event.has_step()) {
      found.push_back(event.step());
    }
  }
  return found;
}

std::optional<proto::DoneEvent> SimWorld::done() {
  const auto all = events();
  return !all.empty() && all.back().has_done() ? std::make_optional(all.back().done())
                                               : std::nullopt;
}

std::optional<proto::FailedEvent> SimWorld::failed() {
  const auto all = events();
  return !all.empty() && all.back().has_failed() ? std::make_optional(all.back().failed())
                                                 : std::nullopt;
}

void SimWorld::CheckDone(SimJob& job, const proto::DoneEvent& end) {
  if (!end.interrupted() && !end.early() && end.step() != job.last_step()) {
    context_.Violation(fmt::format("done at step {} of {}", end.step(), job.last_step()));
  }
  if (end.step() == 0) {
    return;
  }
  const FakeDisk& files = job.disk();
  const auto saved = files.complete.find(end.step());
  if (saved == files.complete.end()) {
    context_.Violation(fmt::format("done at step {} without its checkpoint", end.step()));
  } else if (job.Saved(saved->second.path).second != job.StateAfter(end.step())) {
    context_.Violation(fmt::format(
        "I18: the checkpoint of step {} has other bits than a run in which nothing goes "
        "wrong",
        end.step()));
  }
}

void SimWorld::CheckEnds() {
  for (const SimCommand::Followed& job : command_.jobs()) {
    if (job.end.has_value() && job.end->has_done()) {
      CheckDone(*job.job, job.end->done());
    }
  }
}

std::vector<std::string> SimWorld::Violations() {
  // Steps are reported once each, in order, with the planned loss, whichever worker ran them.
  int64_t previous = 0;
  for (const proto::StepEvent& event : step_events()) {
    if (previous != 0 && event.step() != previous + 1) {
      context_.Violation(fmt::format("step {} was told after step {}", event.step(), previous));
    }
    previous = event.step();
    if (event.loss() != jobs_.front()->LossOf(event.step())) {
      context_.Violation(fmt::format("loss of step {} is {} instead of {}", event.step(),
                                     event.loss(), jobs_.front()->LossOf(event.step())));
    }
  }
  if (const std::optional<proto::DoneEvent> end = done(); end.has_value()) {
    CheckDone(*jobs_.front(), *end);
  } else if (!failed().has_value()) {
    context_.Violation("the job has no end");
  }
  return context_.violations;
}

}  // namespace shoal::simulation

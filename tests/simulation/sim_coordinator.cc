#include "tests/simulation/sim_coordinator.h"

#include <algorithm>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::simulation {
namespace {

constexpr absl::Duration kWatchInterval = absl::Seconds(1);
constexpr absl::Duration kUntilABreakShows = absl::Milliseconds(1);

}  // namespace

SimCoordinator::SimCoordinator(SimContext& context, const SimOptions& options, SimStore& store,
                               SimServers& servers, Loader loader, Metrics& metrics, int process)
    : context_(context),
      options_(options),
      store_(store),
      servers_(servers),
      loader_(std::move(loader)),
      metrics_(metrics),
      process_(context.loop, process, process == 0 ? "coordinator" : "coordinator-2") {
  process_.after_each = [this] { AfterEach(); };
  process_.on_end = [this] { OnEnd(); };
  process_.on_thaw = [this](absl::Duration frozen) {
    if (core_ != nullptr) {
      core_->ExtendLeases(frozen);
    }
    process_.Run([this] { Tick(); });
  };
  store_.refuse = [this]() -> absl::Status {
    if (!process_.alive()) {
      return Aborted("the process has ended");
    }
    return process_.DiskIsFull() ? ResourceExhausted("no space left on device") : absl::OkStatus();
  };
}

void SimCoordinator::Start() {
  process_.Begin();
  tick_at_ = kNever;
  SHOAL_CHECK(store_.BeginTerm().ok());
  server::SavedState saved = *store_.Load();
  server::ForgetRunsThatAreOver(saved);
  term_ = saved.term;
  context_.Note("start", static_cast<uint64_t>(process_.life()), [&] {
    return fmt::format("coordinator, term {}, {} members, {} jobs", saved.term,
                       saved.members.size(), saved.jobs.size());
  });
  on_started(term_);
  core_ = std::make_unique<server::CoordinatorCore>(
      server::MembershipOptions{.version = "1",
                                .lease = absl::Seconds(options_.lease_seconds),
                                .seed = options_.seed * 1000 + static_cast<uint64_t>(term_),
                                .issued = saved.incarnations,
                                .cluster = saved.cluster,
                                .term = saved.term},
      server::JobEnvironment{.clock = process_.clock(),
                             .make_clients = servers_.ClientsOf(process_),
                             .store = store_,
                             .metrics = metrics_,
                             .post = [](const std::function<void()>& work) { work(); },
                             .plan = InOrder(false),
                             .disk = InOrder(true),
                             .stays = options_.stays,
                             .durable = true,
                             .term = saved.term,
                             .started = process_.clock().Now(),
                             .move_pace = {.bytes = options_.wave_bytes},
                             .superseded = [this](const absl::Status& why) { OnSuperseded(why); },
                             .reached = [this](const char* point) { OnReached(point); }});
  seen_changes_ = core_->changes();
  core_->Restore(saved.members);
  for (const server::SavedJob& job : saved.jobs) {
    if (core_ != nullptr) {  // else it ended in the last
      TakeUp(job, options_.stays || !saved.members.empty());
    }
  }
  if (core_ != nullptr) {
    core_->Begin();
  }
  AfterEach();
}

// As Coordinator::TakeUp.
void SimCoordinator::TakeUp(server::SavedJob saved, bool goes_on) {
  if (server::TakeOutcomeOfEvents(saved)) {
    static_cast<void>(store_.EndJob(saved.id, saved.outcome));
  }
  if (!saved.outcome.empty()) {
    if (goes_on) {
      proto::SubmitJobRequest request;
      SHOAL_CHECK(request.ParseFromString(saved.request));
      server::LoadedJob job = loader_(request);
      job.id = saved.id;
      job.run = saved.run.has_value() ? saved.run->run() : 0;
      core_->Remember(std::move(job), saved);
    }
    return;
  }
  if (!goes_on) {
    static_cast<void>(store_.EndJob(saved.id, "the coordinator ended before it"));
    return;
  }
  if (const absl::Status resumed = Resume(saved); !resumed.ok()) {
    static_cast<void>(store_.EndJob(saved.id, fmt::format("failed: {}", Message(resumed))));
  }
}

absl::Status SimCoordinator::Resume(const server::SavedJob& saved) {
  proto::SubmitJobRequest request;
  if (!request.ParseFromString(saved.request)) {
    return DataLoss("its record cannot be read");
  }
  server::LoadedJob job = loader_(request);
  SHOAL_ASSIGN_OR_RETURN(std::optional<server::CompleteCheckpoint> newest,
                         job.checkpoints->Newest());
  return core_->Resume(std::move(job), std::move(newest), saved);
}

server::Executor SimCoordinator::InOrder(bool disk) {
  const auto free_at = std::make_shared<Nanoseconds>(0);
  return [this, disk, free_at, life = process_.life()](std::function<void()> work) {
    const Nanoseconds slow = disk && process_.DiskIsSlow() ? 500'000'000 : 0;
    *free_at =
        std::max(*free_at, context_.loop.now()) + ToNanoseconds(context_.ShortDelay()) + slow;
    context_.loop.At(*free_at, [this, life, work = std::move(work)]() mutable {
      if (life == process_.life()) {
        process_.Run([this, work = std::move(work)] {
          context_.hook("plan", 0);
          work();
        });
      }
    });
  };
}

void SimCoordinator::HoldConnection(SimProcess& from, uint64_t incarnation,
                                    Done<proto::HoldConnectionReply> done) {
  if (SimCoordinator& other = ReachedBy(from); &other != this) {
    other.HoldConnection(from, incarnation, std::move(done));
    return;
  }
  context_.network.Call<proto::HoldConnectionReply>(
      from, process_, {.deadline = absl::InfiniteDuration()},
      [this, &from, life = from.life(), incarnation](const auto& answer) {
        if (const absl::Status held = core_->OnConnected(incarnation); !held.ok()) {
          answer(held);
          return;
        }
        held_.push_back({.from = &from, .incarnation = incarnation, .answer = answer});
        if (!from.alive() || from.life() != life) {
          BreakConnections(from);
        }
      },
      std::move(done));
}

void SimCoordinator::BreakConnections(const SimProcess& from) {
  if (successor != nullptr) {
    successor->BreakConnections(from);
  }
  std::vector<Held> broken;
  std::erase_if(held_, [&](const Held& held) {
    if (held.from == &from) {
      broken.push_back(held);
    }
    return held.from == &from;
  });
  for (const Held& held : broken) {
    process_.After(kUntilABreakShows, [this, held] {
      core_->OnDisconnected(held.incarnation);
      held.answer(Unavailable("the connection broke"));
    });
  }
}

void SimCoordinator::Wait(absl::Duration at_most, Look look) {
  if (look(false) || core_ == nullptr) {
    return;
  }
  const auto waits = std::make_shared<Look>(std::move(look));
  waiting_.push_back(waits);
  process_.After(at_most, [this, waits] {
    if (*waits != nullptr) {
      static_cast<void>((*waits)(true));
      *waits = nullptr;
      waiting_.remove(waits);
    }
  });
}

void SimCoordinator::AfterEach() {
  if (core_ == nullptr) {
    return;
  }
  while (core_ != nullptr && core_->changes() != seen_changes_) {
    seen_changes_ = core_->changes();
    for (const std::shared_ptr<Look>& waits : std::vector(waiting_.begin(), waiting_.end())) {
      if (core_ != nullptr && *waits != nullptr && (*waits)(false)) {
        *waits = nullptr;
        waiting_.remove(waits);
      }
    }
  }
  if (core_ == nullptr) {
    return;
  }
  const absl::Time next = core_->NextTick();
  if (next == absl::InfiniteFuture()) {
    return;
  }
  const absl::Duration left = std::max(next - process_.clock().Now(), absl::ZeroDuration());
  const Nanoseconds at = context_.loop.now() + process_.clock().LoopTime(ToNanoseconds(left)) + 1;
  if (at < tick_at_) {
    tick_at_ = at;
    process_.After(left + absl::Nanoseconds(1), [this, at] {
      if (at == tick_at_) {
        Tick();
      }
    });
  }
}

void SimCoordinator::Tick() {
  tick_at_ = kNever;
  if (core_ != nullptr && core_->NextTick() <= process_.clock().Now()) {
    core_->Tick();
  }
}

// Ends at a named point of the core's code, in the midst of a function.
void SimCoordinator::OnReached(const char* point) {
  constexpr int kMostCrashes = 2;
  constexpr absl::Duration kUntilStart = absl::Milliseconds(500);
  if (process_.alive() && crashes_ < kMostCrashes &&
      context_.faults.Fires(point, context_.loop.now())) {
    ++crashes_;
    process_.End();
    context_.loop.After(kUntilStart, [this] {
      if (!process_.alive() && successor == nullptr) {
        Start();
      }
    });
  }
}

// As Coordinator, which ends without another word.
void SimCoordinator::OnSuperseded(const absl::Status& why) {
  context_.Note("superseded", static_cast<uint64_t>(term_), [&] { return Message(why); });
  process_.End();
}

SimCoordinator& SimCoordinator::ReachedBy(const SimProcess& from) {
  if (successor == nullptr || !process_.alive()) {
    return successor == nullptr ? *this : *successor;
  }
  const auto [connected, fresh] = connected_.try_emplace(from.id(), false);
  if (fresh) {
    connected->second = context_.Chance(0.5);
  }
  return connected->second ? *this : *successor;
}

// The process may be in the midst of a function of the core.
void SimCoordinator::OnEnd() {
  context_.network.Break(process_.id());
  waiting_.clear();
  held_.clear();
  context_.loop.After(absl::ZeroDuration(), [core = std::shared_ptr(std::move(core_))] {});
}

void SimCoordinator::Submit(SimProcess& from, const proto::SubmitJobRequest& request,
                            Done<proto::SubmitJobReply> done) {
  if (SimCoordinator& other = ReachedBy(from); &other != this) {
    other.Submit(from, request, std::move(done));
    return;
  }
  context_.network.Call<proto::SubmitJobReply>(
      from, process_, {.deadline = absl::Seconds(60), .repeats = false},
      [this, request](const auto& answer) {
        server::LoadedJob job = loader_(request);
        auto newest = job.checkpoints->Newest();
        answer(core_->Submit(std::move(job), *std::move(newest), request.resume()));
      },
      std::move(done));
}

void SimCoordinator::Stop(SimProcess& from, const std::string& job_id,
                          Done<proto::StopJobReply> done) {
  if (SimCoordinator& other = ReachedBy(from); &other != this) {
    other.Stop(from, job_id, std::move(done));
    return;
  }
  context_.network.Call<proto::StopJobReply>(
      from, process_, {},
      [this, job_id](const auto& answer) {
        const absl::Status stopped = core_->Stop(job_id, "test");
        if (stopped.ok()) {
          on_stopped(term_, job_id);
        }
        stopped.ok() ? answer(proto::StopJobReply()) : answer(stopped);
      },
      std::move(done));
}

// Of what it has not seen, because a later life told it.
void SimCoordinator::CheckNothingIsMissed(const server::EventLog& log, int64_t after,
                                          int64_t term) const {
  if (term == term_ || after == 0) {
    return;
  }
  for (const proto::JobEvent& event : log.After(0)) {
    if (event.term() > term && event.number() <= after) {
      context_.Violation(fmt::format("I15: event {} of term {} is not told to who has seen term {}",
                                     event.number(), event.term(), term));
      return;
    }
  }
}

void SimCoordinator::Watch(SimProcess& from, const std::string& job_id, int64_t after_event,
                           int64_t term, Done<Watched> done) {
  if (SimCoordinator& other = ReachedBy(from); &other != this) {
    other.Watch(from, job_id, after_event, term, std::move(done));
    return;
  }
  context_.network.Call<Watched>(
      from, process_, {.deadline = kWatchInterval + absl::Seconds(5)},
      [this, job_id, after_event, term](const auto& answer) {
        const auto log = core_->Events(job_id);
        if (!log.ok()) {
          answer(log.status());
          return;
        }
        const int64_t after = (*log)->NewAfter(after_event, term);
        CheckNothingIsMissed(**log, after, term);
        Wait(kWatchInterval, [this, answer, after, log = *log](bool expired) {
          std::vector<proto::JobEvent> events = log->After(after);
          if (events.empty() && !expired) {
            return false;
          }
          answer(Watched{.term = term_, .events = std::move(events)});
          return true;
        });
      },
      std::move(done));
}

}  // namespace shoal::simulation

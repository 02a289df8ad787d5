#include "tests/simulation/sim_worker.h"

#include <algorithm>
#include <array>

#include "core/base/status.h"
#include "core/model/contribution.h"
#include "tests/simulation/process_ids.h"
#include "tests/simulation/sim_job.h"

namespace shoal::simulation {
namespace {

using worker::IsTransient;
using worker::WorkerCore;

// As worker::Trainer and worker::MicrobatchDrawer have them.
constexpr int kAnswerSeconds = 5;
constexpr absl::Duration kAnswer = absl::Seconds(kAnswerSeconds);
constexpr absl::Duration kPollAnswer = absl::Seconds(WorkerCore::kPollSeconds + kAnswerSeconds);
constexpr absl::Duration kWatchPatience = absl::Seconds(1);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(500);
constexpr absl::Duration kWatchLook = absl::Milliseconds(100);
constexpr absl::Duration kDrawRetryDelay = absl::Milliseconds(20);
// As client::ClientOptions and worker::RunWatch have them.
constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
constexpr absl::Duration kConnectDelay = absl::Milliseconds(50);
constexpr absl::Duration kGetTimeout = absl::Seconds(10);
constexpr absl::Duration kPushTimeout = absl::Seconds(30);

}  // namespace

SimWorker::SimWorker(SimContext& context, const SimOptions& options, SimCoordinator& coordinator,
                     SimServers& servers, std::unique_ptr<SimProcess> process, int index,
                     const Observer& observer)
    : SimMember(context, options, coordinator, *process, proto::ROLE_WORKER, index),
      servers_(servers),
      owned_(std::move(process)),
      observer_(observer) {
  process_.on_end = [this] {
    servers_.fabric().Break(process_.id());
    step_.reset();
    DropClient();
  };
}

// It may be in a turn.
void SimWorker::DropClient() {
  if (client_ != nullptr) {
    client_->on_turn = [] {};
    context_.loop.At(context_.loop.now(), [dropped = std::shared_ptr(std::move(client_))] {});
  }
}

void SimWorker::OnRegistered() {
  core_.emplace(incarnation(), options_.stays);
  step_.reset();
  Act();
}

void SimWorker::Act() {
  static constexpr std::array kPoints = {"a worker is to join", "a worker is to connect",
                                         "a worker is to ask", "a worker is to run",
                                         "a worker is to leave"};
  const WorkerCore::What next = core_->Next(process_.clock().Now());
  if (EndsAt(kPoints[static_cast<size_t>(next)])) {
    return;
  }
  switch (next) {
    case WorkerCore::What::kJoin:
      Join();
      break;
    case WorkerCore::What::kMake:
      TakePart(core_->join());
      break;
    case WorkerCore::What::kAsk:
      AskForStep();
      break;
    case WorkerCore::What::kRun:
      Begin(core_->work());
      break;
    case WorkerCore::What::kLeave:
      Leave(std::string(Message(core_->end())));
      break;
  }
}

void SimWorker::ActAfterPause() {
  core_->pause() > absl::ZeroDuration() ? process_.After(core_->pause(), [this] { Act(); }) : Act();
}

void SimWorker::Join() {
  if (!core_->has_part()) {
    DropClient();
  }
  coordinator_.AskAndWait<proto::JoinJobRequest, proto::JoinJobReply>(
      process_, kPollAnswer, core_->join_question(), &server::CoordinatorCore::Join,
      [this](const absl::StatusOr<proto::JoinJobReply>& reply) {
        core_->OnJoined(reply);
        ActAfterPause();
      });
}

void SimWorker::TakePart(const proto::JoinJobReply& join) {
  context_.Note("join", static_cast<uint64_t>(process_.id()), [&] {
    return fmt::format("{}: {}, stage {} of group {}", process_.name(), run_name(), join.stage(),
                       join.group());
  });
  observer_.on_join(index(), join);
  job_ = &servers_.JobOf(join.job().checkpoint().directory());
  if (client_ != nullptr && client_->Follow(join)) {
    Ready();
    return;
  }
  DropClient();
  Connect(process_.clock().Now() + kConnectTimeout);
}

void SimWorker::Connect(absl::Time until) {
  client_ = std::make_unique<SimClient>(context_, servers_, process_, *job_, core_->join(),
                                        incarnation());
  const absl::Status started = client_->Start();
  if (started.ok()) {
    client_->on_turn = [this] { OnTurn(); };
    Ready();
    return;
  }
  DropClient();
  if (absl::IsUnavailable(started) && process_.clock().Now() < until) {
    process_.After(kConnectDelay, [this, until] {
      if (registered()) {
        Connect(until);
      }
    });
  } else {
    FailUnlessLeftBehind(started);
  }
}

void SimWorker::Ready() {
  core_->OnMade(options_.sums ? proto::NextStepRequest::PUSHES_OF_STEPS
                              : proto::NextStepRequest::PUSHES_OF_PACKS);
  Act();
}

// What it was told may be older than what servers know by now.
void SimWorker::FailUnlessLeftBehind(const absl::Status& status) {
  coordinator_.AskAndWait<proto::JoinJobRequest, proto::JoinJobReply>(
      process_, kPollAnswer, core_->left_behind_question(incarnation()),
      &server::CoordinatorCore::Join,
      [this, status](const absl::StatusOr<proto::JoinJobReply>& reply) {
        core_->IsLeftBehind(reply) ? core_->OnLeftBehind() : core_->Fail(status);
        ActAfterPause();
      });
}

void SimWorker::OnTurn() {
  if (step_ == nullptr) {
    return;
  }
  if (client_->LacksServer()) {
    AskWhetherItIsOver(step_);
  }
  step_->lacks_weights ? ComputePack() : FinishStep();
}

void SimWorker::InStep(absl::Duration delay, std::function<void()> work) {
  process_.After(delay, [this, step = step_, work = std::move(work)] {
    if (step == step_) {
      work();
    }
  });
}

void SimWorker::AskForStep() {
  coordinator_.AskAndWait<proto::NextStepRequest, proto::NextStepReply>(
      process_, kPollAnswer, core_->question(), &server::CoordinatorCore::Next,
      [this](const absl::StatusOr<proto::NextStepReply>& reply) {
        if (reply.ok() && (reply->has_work() || reply->has_join()) &&
            context_.Chance(options_.lost_reply)) {
          process_.After(absl::Seconds(1), [this] { Act(); });
          return;
        }
        core_->OnAnswered(reply, process_.clock().Now());
        ActAfterPause();
      });
}

void SimWorker::Begin(const proto::StepWork& work) {
  context_.Note("work", static_cast<uint64_t>(process_.id()), [&] {
    return fmt::format("{}: step {} attempt {} with {} microbatches", process_.name(), work.step(),
                       work.attempt(), work.microbatches_size());
  });
  observer_.on_work(index(), work);
  if (!process_.alive()) {
    return;
  }
  step_ = std::make_shared<Step>(Step{.work = work});
  step_->report.set_step(work.step());
  step_->report.set_attempt(work.attempt());
  step_->report.set_round(work.round());
  step_->report.set_peak_flops(kPeakFlops);
  if (const absl::Status begun = client_->BeginStep(work.step(), work.attempt()); !begun.ok()) {
    Fail(/*by_neighbour=*/false, std::string(Message(begun)));
    return;
  }
  InStep(kWatchPatience, [this] { AskWhetherItIsOver(step_); });
  const bool slow = context_.Chance(options_.slow_worker);
  InStep(slow ? absl::Milliseconds(300) : context_.ShortDelay(), [this] { Compute(); });
}

// One microbatch after the other, while pushes of earlier ones are under way.
void SimWorker::Compute() {
  const Step& step = *step_;
  const int left = step.work.microbatches_size() - step.next;
  const bool early = (draining() && options_.stages == 1) ||
                     (left <= (step.work.draw() ? 0 : 1) && context_.Chance(options_.early_report));
  if (left == 0 || early) {
    step.work.draw() && !early ? Draw() : EndComputing();
    return;
  }
  ComputePack();
}

bool SimWorker::HasWeights() {
  Step& step = *step_;
  if (!step.weights.empty()) {
    return true;
  }
  auto weights = client_->Weights();
  if (!weights.ok()) {
    Fail(/*by_neighbour=*/false, std::string(Message(weights.status())));
    return false;
  }
  if (!weights->has_value()) {
    if (!std::exchange(step.lacks_weights, true)) {
      InStep(kGetTimeout, [this] {
        if (step_->lacks_weights) {
          Fail(/*by_neighbour=*/false, "no answer to a get");
        }
      });
    }
    return false;
  }
  step.lacks_weights = false;
  step.weights = **std::move(weights);
  const int64_t version = step.work.step() - 1;
  if (step.weights != job_->StateAfter(version).of(server::StateArray::kMaster)) {
    context_.Violation(fmt::format("I7: {} has got other weights than those of version {}",
                                   process_.name(), version));
  }
  return true;
}

void SimWorker::ComputePack() {
  if (!HasWeights()) {
    return;
  }
  Step& step = *step_;
  proto::FinishedReport& report = step.report;
  const proto::MicrobatchWork pack = step.work.microbatches(step.next++);
  proto::PackResult& result = *report.add_packs();
  result = server::testing::FakeSteps::Run(pack);
  if (stage() < options_.stages - 1) {
    result.set_loss_sum(0);
  }
  const absl::Duration took = context_.ShortDelay();
  if (pack.samples_size() > 0) {
    proto::MicrobatchTime& time = *report.add_times();
    time.set_tokens(int64_t{10} * pack.samples_size());
    time.set_squared_tokens(100.0 * pack.samples_size());
    time.set_seconds(absl::ToDoubleSeconds(took));
    report.set_busy_seconds(report.busy_seconds() + time.seconds());
  }
  if (step.work.trace()) {
    report.add_spans()->set_microbatch(step.next - 1);
  }
  InStep(took, [this, pack] {
    if (!options_.sums && !step_->work.validates()) {
      Push(plan::Contribution::OfPack(pack.number(), options_.stages, stage()),
           OfStage({pack.samples().begin(), pack.samples().end()}, stage()));
    }
    Compute();
  });
}

void SimWorker::EndComputing() {
  step_->all_computed = true;
  if (options_.sums && step_->next > 0 && !step_->work.validates()) {
    std::vector<int64_t> samples;
    for (int i = 0; i < step_->next; ++i) {
      const auto& pack = step_->work.microbatches(i).samples();
      samples.insert(samples.end(), pack.begin(), pack.end());
    }
    Push(plan::Contribution::OfWork(step_->work.packs(), options_.stages, step_->work.slot()),
         OfStage(samples, stage()));
  }
  FinishStep();
}

void SimWorker::Push(const plan::Contribution& contribution, const std::vector<int64_t>& samples) {
  client_->Push(job_->model().Gradient(step_->weights, samples), contribution);
}

// Draws until nothing is left; a request whose answer is lost is repeated.
void SimWorker::Draw() {
  proto::DrawMicrobatchRequest request;
  request.set_job_id(core_->join().job_id());
  request.set_run(core_->join().run());
  request.set_incarnation(incarnation());
  request.set_step(step_->work.step());
  request.set_attempt(step_->work.attempt());
  request.set_round(step_->work.round());
  request.set_number(step_->next_draw);
  for (const proto::PackResult& result : step_->report.packs()) {
    if (!options_.sums && client_->Acknowledged(result.number())) {
      *request.add_done() = result;
    }
  }
  coordinator_.Ask<proto::DrawMicrobatchRequest, proto::DrawMicrobatchReply>(
      process_, kAnswer, request, &server::CoordinatorCore::Draw,
      [this, step = step_](const absl::StatusOr<proto::DrawMicrobatchReply>& answer) {
        if (step != step_) {
          return;
        }
        const absl::StatusOr<proto::DrawMicrobatchReply> reply = core_->OfNewestTerm(answer);
        const bool lost = reply.ok() && context_.Chance(options_.lost_reply);
        if (lost || (!reply.ok() && IsTransient(reply.status()))) {
          process_.After(lost ? absl::Seconds(1) : kDrawRetryDelay,
                         [this, step] { step == step_ ? Draw() : void(); });
          return;
        }
        if (!reply.ok()) {
          step->report.set_failed(true);
          step->report.set_message(std::string(Message(reply.status())));
        }
        if (!reply.ok() || reply->none()) {
          EndComputing();
          return;
        }
        observer_.on_draw();
        ++step->next_draw;
        *step->work.add_microbatches() = reply->microbatch();
        Compute();
      });
}

void SimWorker::FinishStep() {
  Step& step = *step_;
  if (!step.all_computed || step.finished) {
    return;
  }
  const absl::Status pushed = client_->Finish();
  if (absl::IsDeadlineExceeded(pushed)) {
    if (!std::exchange(step.finishing, true)) {
      InStep(kPushTimeout, [this] { Fail(/*by_neighbour=*/false, "pushes are not taken"); });
    }
    return;
  }
  step.finished = true;
  if (!pushed.ok()) {
    step.report.set_failed(true);
    step.report.set_message(std::string(Message(pushed)));
  }
  if (LacksANeighbour()) {
    // It sees that the connection ends, or waits for a message that never comes.
    if (context_.Chance(0.5)) {
      Fail(/*by_neighbour=*/true, "a stage closed the connection");
    }
    return;
  }
  Report(std::move(std::exchange(step_, nullptr)->report));
}

bool SimWorker::LacksANeighbour() const {
  return !std::ranges::all_of(core_->join().stages(), observer_.lives);
}

void SimWorker::Fail(bool by_neighbour, const std::string& why) {
  step_->report.set_failed(true);
  step_->report.set_by_neighbour(by_neighbour);
  step_->report.set_message(why);
  Report(std::move(std::exchange(step_, nullptr)->report));
}

void SimWorker::Drain(absl::Duration grace) {
  if (!registered() || draining()) {
    return;
  }
  const WorkerCore::What next = core_->Next(process_.clock().Now());
  if (next == WorkerCore::What::kJoin || next == WorkerCore::What::kMake) {
    Leave(kToldTo);
    return;
  }
  const absl::Time until = process_.clock().Now() + grace;
  core_->Drain(until);
  process_.After(grace, [this] {
    if (step_ != nullptr) {
      Fail(/*by_neighbour=*/false, "it may not take longer");
    }
  });
}

// As worker::RunWatch.
void SimWorker::AskWhetherItIsOver(const std::shared_ptr<Step>& step) {
  if (std::exchange(step->watched, true)) {
    return;
  }
  coordinator_.AskAndWait<proto::NextStepRequest, proto::NextStepReply>(
      process_, kAnswer, core_->over_question(), &server::CoordinatorCore::Next,
      [this, step](const absl::StatusOr<proto::NextStepReply>& reply) {
        if (step != step_) {
          return;
        }
        if (core_->IsOver(reply)) {
          Fail(/*by_neighbour=*/false, "nobody waits for the step");
        } else {
          process_.After(client_->LacksServer() ? kWatchLook : kWatchInterval, [this, step] {
            if (step == step_) {
              step->watched = false;
              AskWhetherItIsOver(step);
            }
          });
        }
      });
}

void SimWorker::Report(proto::FinishedReport report) {
  if (EndsAt("a worker has run")) {
    return;
  }
  observer_.before_report(index(), report);
  if (context_.Chance(options_.failed_report)) {
    report.set_failed(true);
    report.set_message("injected");
  }
  if (context_.Chance(options_.repeated_report)) {
    process_.After(context_.ShortDelay() * 5, [this, report, question = core_->over_question()] {
      proto::NextStepRequest request = question;  // a late copy; its answer is ignored
      *request.mutable_finished() = report;
      coordinator_.AskAndWait<proto::NextStepRequest, proto::NextStepReply>(
          process_, kAnswer, request, &server::CoordinatorCore::Next, [](const auto&) {});
    });
  }
  core_->OnRan(std::move(report));
  Act();
}

}  // namespace shoal::simulation

#include "tests/simulation/sim_worker.h"

#include <algorithm>

#include "core/base/status.h"
#include "core/model/contribution.h"
#include "tests/simulation/sim_job.h"

namespace shoal::simulation {
namespace {

// As worker::Trainer and worker::MicrobatchDrawer have them.
constexpr int kPollSeconds = 1;
constexpr absl::Duration kAnswer = absl::Seconds(5);
constexpr absl::Duration kRetryDelay = absl::Milliseconds(100);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(500);
constexpr absl::Duration kDrawRetryDelay = absl::Milliseconds(20);
constexpr absl::Duration kPushDeadline = absl::Seconds(2);
constexpr int kPushTries = 3;

bool IsTransient(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

struct Pushed {};

}  // namespace

SimWorker::SimWorker(SimContext& context, const SimOptions& options, SimCoordinator& coordinator,
                     FakeServers& servers, std::unique_ptr<SimProcess> process, int index,
                     const Observer& observer)
    : SimMember(context, options, coordinator, *process, proto::ROLE_WORKER, index),
      servers_(servers),
      owned_(std::move(process)),
      observer_(observer) {}

template <typename Answer>
Answer SimWorker::OfNewestTerm(const Answer& reply) {
  int64_t term = 0;
  if constexpr (requires { (*reply)->term(); }) {
    if (!reply.ok() || !reply->has_value()) {
      return reply;
    }
    term = (*reply)->term();
  } else {
    if (!reply.ok()) {
      return reply;
    }
    term = reply->term();
  }
  const absl::Status admitted = term_.Admit(term, "the coordinator's answer");
  return admitted.ok() ? reply : Unavailable("{}", Message(admitted));
}

void SimWorker::OnRegistered() {
  term_.Forget();
  step_.reset();
  report_.reset();
  draining_ = false;
  Join();
}

void SimWorker::Join() {
  proto::JoinJobRequest request;
  request.set_incarnation(incarnation());
  request.set_wait_seconds(kPollSeconds);
  coordinator_.AskAndWait<proto::JoinJobRequest, proto::JoinJobReply>(
      process_, absl::Seconds(kPollSeconds) + kAnswer, request, &server::CoordinatorCore::Join,
      [this](const auto& reply) { OnJoined(OfNewestTerm(reply)); });
}

void SimWorker::OnJoined(const absl::StatusOr<std::optional<proto::JoinJobReply>>& reply) {
  if (!reply.ok() && !IsTransient(reply.status())) {
    Leave(std::string(Message(reply.status())));
    return;
  }
  if (!reply.ok()) {
    process_.After(kRetryDelay, [this] { Join(); });
    return;
  }
  if (!reply->has_value()) {
    Join();
    return;
  }
  if ((*reply)->shut_down()) {
    Leave("");
    return;
  }
  const proto::JoinJobReply& join = **reply;
  job_id_ = join.job_id();
  run_ = join.run();
  formation_ = join.formation();
  group_ = join.group();
  stage_ = join.stage();
  stages_ = {join.stages().begin(), join.stages().end()};
  job_servers_.clear();
  for (const proto::ServerAddress& server : join.servers()) {
    job_servers_.push_back(std::stoi(server.address().substr(server.address().find(':') + 1)));
  }
  context_.Note("join", static_cast<uint64_t>(process_.id()), [&] {
    return fmt::format("{}: {} run {}, stage {} of group {}", process_.name(), job_id_, run_,
                       stage_, group_);
  });
  observer_.on_join(index(), join);
  report_.reset();
  AskForStep();
}

void SimWorker::AskForStep() {
  proto::NextStepRequest request;
  request.set_job_id(job_id_);
  request.set_run(run_);
  request.set_incarnation(incarnation());
  request.set_wait_seconds(kPollSeconds);
  request.set_formation(formation_);
  request.set_leaving(draining_);
  request.set_pushes(options_.sums ? proto::NextStepRequest::PUSHES_OF_STEPS
                                   : proto::NextStepRequest::PUSHES_OF_PACKS);
  if (report_.has_value()) {
    *request.mutable_finished() = *report_;
  }
  coordinator_.AskAndWait<proto::NextStepRequest, proto::NextStepReply>(
      process_, absl::Seconds(kPollSeconds) + kAnswer, request, &server::CoordinatorCore::Next,
      [this](const auto& reply) { OnNext(OfNewestTerm(reply)); });
}

void SimWorker::OnNext(const absl::StatusOr<std::optional<proto::NextStepReply>>& reply) {
  if (!reply.ok() && !IsTransient(reply.status())) {
    Leave(std::string(Message(reply.status())));
    return;
  }
  if (!reply.ok()) {
    process_.After(kRetryDelay, [this] { AskForStep(); });
    return;
  }
  if (reply->has_value() && (*reply)->has_work() && context_.Chance(options_.lost_reply)) {
    process_.After(absl::Seconds(1), [this] { AskForStep(); });
    return;
  }
  report_.reset();
  if (!reply->has_value() || (draining_ && (*reply)->has_work())) {
    AskForStep();
  } else if (draining_) {
    Leave("it was told to");
  } else if ((*reply)->join_again()) {
    Join();
  } else if ((*reply)->job_over()) {
    options_.stays ? Join() : AskAgainAtTheEnd();
  } else {
    Begin((*reply)->work());
  }
}

// Until the lease's renewal says that all is over.
void SimWorker::AskAgainAtTheEnd() {
  process_.After(absl::Seconds(1), [this] { Join(); });
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
  const bool slow = context_.Chance(options_.slow_worker);
  process_.After(slow ? absl::Milliseconds(300) : context_.ShortDelay(),
                 [this, step = step_] { step == step_ ? Compute() : void(); });
}

// One microbatch after the other, while pushes of earlier ones are under way.
void SimWorker::Compute() {
  Step& step = *step_;
  proto::FinishedReport& report = step.report;
  const int left = step.work.microbatches_size() - step.next;
  const bool early = (draining_ && options_.stages == 1) ||
                     (left <= (step.work.draw() ? 0 : 1) && context_.Chance(options_.early_report));
  if (left == 0 || early) {
    step.work.draw() && !early ? Draw() : EndComputing();
    return;
  }
  const proto::MicrobatchWork pack = step.work.microbatches(step.next++);
  proto::PackResult& result = *report.add_packs();
  result = server::testing::FakeSteps::Run(pack);
  if (stage_ < options_.stages - 1) {
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
  process_.After(took, [this, pack, current = step_] {
    if (current != step_) {
      return;
    }
    if (!options_.sums) {
      Push(plan::Contribution::OfPack(pack.number(), options_.stages, stage_),
           OfStage({pack.samples().begin(), pack.samples().end()}, stage_));
    }
    Compute();
  });
}

void SimWorker::EndComputing() {
  step_->all_computed = true;
  if (options_.sums && step_->next > 0) {
    std::vector<int64_t> samples;
    for (int i = 0; i < step_->next; ++i) {
      const auto& pack = step_->work.microbatches(i).samples();
      samples.insert(samples.end(), pack.begin(), pack.end());
    }
    Push(plan::Contribution::OfWork(step_->work.packs(), options_.stages, step_->work.slot()),
         OfStage(samples, stage_));
  }
  FinishStep();
}

void SimWorker::Push(const plan::Contribution& contribution, const std::vector<int64_t>& samples) {
  step_->of_packs[contribution.pack] = static_cast<int>(job_servers_.size());
  for (size_t server = 0; server < job_servers_.size(); ++server) {
    ++step_->pushes_under_way;
    PushTo(static_cast<int>(server), {contribution, samples}, kPushTries);
  }
}

// Again under the same key, until it is taken.
void SimWorker::PushTo(int server, const Gradient& gradient, int tries) {
  const int index = job_servers_[static_cast<size_t>(server)];
  const proto::StepWork& work = step_->work;
  context_.network.Call<Pushed>(
      process_, servers_.process(index), {.deadline = kPushDeadline},
      [this, index, gradient, id = job_id_, mine = incarnation(), step = work.step(),
       attempt = work.attempt()](const auto& answer) {
        const absl::Status pushed = servers_.server(index).Push(id, mine, gradient.contribution.key,
                                                                step, attempt, gradient.samples);
        pushed.ok() ? answer(Pushed{}) : answer(pushed);
      },
      [this, server, gradient, tries, step = step_](const absl::StatusOr<Pushed>& reply) {
        if (step != step_) {
          return;
        }
        if (!reply.ok() && IsTransient(reply.status()) && tries > 1) {
          PushTo(server, gradient, tries - 1);
        } else {
          OnPushed(step, gradient.contribution.pack, reply.status());
        }
      });
}

void SimWorker::OnPushed(const std::shared_ptr<Step>& step, int64_t pack,
                         const absl::Status& status) {
  --step->pushes_under_way;
  if (status.ok()) {
    --step->of_packs[pack];
  } else {
    step->report.set_failed(true);
    step->report.set_message(std::string(Message(status)));
  }
  FinishStep();
}

// Draws until nothing is left; a request whose answer is lost is repeated.
void SimWorker::Draw() {
  proto::DrawMicrobatchRequest request;
  request.set_job_id(job_id_);
  request.set_run(run_);
  request.set_incarnation(incarnation());
  request.set_step(step_->work.step());
  request.set_attempt(step_->work.attempt());
  request.set_round(step_->work.round());
  request.set_number(step_->next_draw);
  for (const proto::PackResult& result : step_->report.packs()) {
    const auto pushes = step_->of_packs.find(result.number());
    if (pushes != step_->of_packs.end() && pushes->second == 0) {
      *request.add_done() = result;
    }
  }
  coordinator_.Ask<proto::DrawMicrobatchRequest, proto::DrawMicrobatchReply>(
      process_, kAnswer, request, &server::CoordinatorCore::Draw,
      [this, step = step_](const absl::StatusOr<proto::DrawMicrobatchReply>& answer) {
        if (step != step_) {
          return;
        }
        const absl::StatusOr<proto::DrawMicrobatchReply> reply = OfNewestTerm(answer);
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
  if (!step_->all_computed || step_->pushes_under_way > 0) {
    return;
  }
  if (LacksANeighbour()) {
    // It sees that the connection ends, or waits for a message that never comes.
    context_.Chance(0.5) ? Fail(/*by_neighbour=*/true, "a stage closed the connection")
                         : AskWhetherItIsOver(step_);
    return;
  }
  report_ = std::move(step_->report);
  step_.reset();
  Report();
}

bool SimWorker::LacksANeighbour() const { return !std::ranges::all_of(stages_, observer_.lives); }

void SimWorker::Fail(bool by_neighbour, const std::string& why) {
  step_->report.set_failed(true);
  step_->report.set_by_neighbour(by_neighbour);
  step_->report.set_message(why);
  report_ = std::move(step_->report);
  step_.reset();
  Report();
}

void SimWorker::Drain(absl::Duration grace) {
  draining_ = true;
  process_.After(grace, [this] {
    if (draining_ && step_ != nullptr) {
      Fail(/*by_neighbour=*/false, "it may not take longer");
    }
  });
}

// As worker::RunWatch.
void SimWorker::AskWhetherItIsOver(const std::shared_ptr<Step>& step) {
  proto::NextStepRequest request;
  request.set_job_id(job_id_);
  request.set_run(run_);
  request.set_incarnation(incarnation());
  request.set_formation(formation_);
  coordinator_.AskAndWait<proto::NextStepRequest, proto::NextStepReply>(
      process_, kAnswer, request, &server::CoordinatorCore::Next,
      [this, step](const absl::StatusOr<std::optional<proto::NextStepReply>>& answer) {
        if (step != step_) {
          return;
        }
        const auto reply = OfNewestTerm(answer);
        const bool over =
            reply.ok() && reply->has_value() && ((*reply)->job_over() || (*reply)->join_again());
        if (over || (!reply.ok() && !IsTransient(reply.status()))) {
          Fail(/*by_neighbour=*/false, "nobody waits for the step");
        } else {
          process_.After(kWatchInterval, [this, step] { AskWhetherItIsOver(step); });
        }
      });
}

void SimWorker::Report() {
  observer_.before_report(index(), *report_);
  if (context_.Chance(options_.failed_report)) {
    report_->set_failed(true);
    report_->set_message("injected");
  }
  if (context_.Chance(options_.repeated_report)) {
    process_.After(context_.ShortDelay() * 5, [this, report = *report_, run = run_] {
      proto::NextStepRequest request;  // a late copy; its answer is ignored
      request.set_job_id(job_id_);
      request.set_run(run);
      request.set_incarnation(incarnation());
      *request.mutable_finished() = report;
      coordinator_.AskAndWait<proto::NextStepRequest, proto::NextStepReply>(
          process_, kAnswer, request, &server::CoordinatorCore::Next, [](const auto&) {});
    });
  }
  AskForStep();
}

}  // namespace shoal::simulation

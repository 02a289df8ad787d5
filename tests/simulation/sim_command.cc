#include "tests/simulation/sim_command.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "core/base/status.h"
#include "server/coordinator/record/event_log.h"
#include "tests/simulation/process_ids.h"

namespace shoal::simulation {
namespace {

constexpr absl::Duration kBetweenTries = absl::Milliseconds(500);

}  // namespace

SimCommand::SimCommand(SimContext& context, SimCoordinator& coordinator)
    : context_(context),
      coordinator_(coordinator),
      process_(context.loop, kCommandLine, "command-line") {
  process_.Begin();
}

bool SimCommand::AllOver() const {
  return std::ranges::all_of(jobs_, [](const Followed& job) { return job.over(); });
}

void SimCommand::Submit(SimJob& job) {
  jobs_.push_back({.job = &job});
  coordinator_.Submit(process_, job.Request(), [this, index = jobs_.size() - 1](const auto& reply) {
    OnSubmitted(index, reply);
  });
}

void SimCommand::OnSubmitted(size_t index, const absl::StatusOr<proto::SubmitJobReply>& reply) {
  Followed& job = jobs_[index];
  if (!reply.ok()) {
    // Whether it was taken nobody knows: a person would look.
    job.refused = std::string(Message(reply.status()));
    context_.Note("refused", index, [&] { return job.refused; });
    return;
  }
  job.id = reply->job_id();
  context_.Note("submitted", index, [&] { return job.id; });
  Watch(index);
}

void SimCommand::Stop(size_t index) {
  if (index >= jobs_.size() || jobs_[index].id.empty()) {
    return;
  }
  jobs_[index].stopped = true;
  coordinator_.Stop(process_, jobs_[index].id, [](const auto&) {});
}

void SimCommand::Scale(size_t index, int64_t servers, int64_t rate) {
  if (index >= jobs_.size() || jobs_[index].id.empty()) {
    return;
  }
  proto::ScaleRequest request;
  request.set_job_id(jobs_[index].id);
  request.set_servers(servers);
  request.set_rate(rate);
  Ask(request);
}

void SimCommand::Remove(int server) {
  proto::ScaleRequest request;
  request.set_drain(server);
  Ask(request);
}

void SimCommand::Ask(const proto::ScaleRequest& request) {
  coordinator_.Ask<proto::ScaleRequest, proto::ScaleReply>(
      process_, absl::Seconds(5), request, &server::CoordinatorCore::Scale, [](const auto&) {});
}

void SimCommand::Watch(size_t index) {
  coordinator_.Watch(process_, jobs_[index].id, jobs_[index].seen, jobs_[index].term,
                     [this, index](const auto& reply) { OnWatched(index, reply); });
}

void SimCommand::OnWatched(size_t index, const absl::StatusOr<Watched>& reply) {
  Followed& job = jobs_[index];
  if (!reply.ok()) {
    if (absl::IsNotFound(reply.status()) || absl::IsFailedPrecondition(reply.status())) {
      job.lost = true;
    } else {
      process_.After(kBetweenTries, [this, index] { Watch(index); });
    }
    return;
  }
  for (const proto::JobEvent& event : reply->events) {
    Take(job, reply->term, event);
  }
  if (!job.end.has_value()) {
    Watch(index);
  }
}

void SimCommand::Take(Followed& job, int64_t sent_by, const proto::JobEvent& event) {
  // Timelines of an earlier life are gone, and so may be its newest events.
  const bool first = job.seen == 0 || sent_by != job.sent_by;
  const bool later = std::pair(event.term(), event.number()) > std::pair(job.term, job.seen);
  if (event.job_id() != job.id || job.end.has_value() || !later ||
      (!first && event.term() == job.term && event.term() == sent_by &&
       event.number() != job.seen + 1)) {
    context_.Violation(
        fmt::format("I15: event {} of term {} of {} follows event {} of term {} of {}",
                    event.number(), event.term(), event.job_id(), job.seen, job.term, job.id));
  }
  context_.Note("event", static_cast<uint64_t>(event.number()),
                [&] { return event.ShortDebugString(); });
  if (event.has_step() && !server::RepeatsStep(job.step, event)) {
    CheckStep(job, event.term(), event.step());
    job.step = event;
    job.held = event.step().step();
  }
  if (const std::string& state = event.state().state(); absl::StrContains(state, "goes on from")) {
    CheckHeld(job, state);
    job.held = 0;
  }
  if (event.has_failed()) {
    CheckHeld(job, event.failed().message());
  }
  if (server::EndsJob(event)) {
    job.end = event;
    job.ended = context_.loop.now();
  }
  job.seen = event.number();
  job.term = event.term();
  job.sent_by = sent_by;
}

// A server that was told to leave takes no step with it.
void SimCommand::CheckHeld(const Followed& job, const std::string& why) {
  const auto& complete = job.job->disk().complete;
  const int64_t saved = complete.empty() ? 0 : complete.rbegin()->first;
  if (absl::StrContains(why, "is to leave") && !absl::StrContains(why, "the checkpoint of step") &&
      saved < job.held && !context_.has_successor) {
    context_.Violation(fmt::format("I22: {} has step {} and no checkpoint after {} as it ends: {}",
                                   job.id, job.held, saved, why));
  }
}

// Each step once, in order, unless the job went back to a checkpoint.
void SimCommand::CheckStep(Followed& job, int64_t term, const proto::StepEvent& step) {
  const auto& complete = job.job->disk().complete;
  const bool goes_back = step.step() == 1 || complete.contains(step.step() - 1);
  const int64_t last = job.step.step().step();
  const bool goes_on = step.step() == last + 1;
  // That it was told is lost with a machine's power: of what nobody had read, a later life of the
  // coordinator tells only the last.
  const bool may_miss = term != job.step.term();
  const bool missed = may_miss && context_.tail_lost && step.step() > last;
  if (!goes_on && !missed && !(goes_back && (step.step() <= last || may_miss))) {
    context_.Violation(
        fmt::format("I14: step {} of {} was told after step {}", step.step(), job.id, last));
  }
  if (step.loss() != job.job->LossOf(step.step())) {
    context_.Violation(fmt::format("I14: the loss of step {} of {} is {} instead of {}",
                                   step.step(), job.id, step.loss(), job.job->LossOf(step.step())));
  }
}

}  // namespace shoal::simulation

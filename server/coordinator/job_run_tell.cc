// What is told of a committed step: its event, metrics, timeline and where each worker's time went.
#include "server/coordinator/job_run.h"
#include "server/coordinator/step_timing.h"

namespace shoal::server {
namespace {

proto::JobEvent MakeTrace(int worker, proto::FinishedReport& report) {
  proto::JobEvent event;
  proto::TraceEvent& trace = *event.mutable_trace();
  trace.set_worker(worker);
  trace.set_step(report.step());
  trace.set_attempt(report.attempt());
  trace.mutable_spans()->Swap(report.mutable_spans());
  trace.set_dropped(report.dropped_spans());
  return event;
}

}  // namespace

void JobRun::TellStep(const StepTotals& totals, double learning_rate) {
  const absl::Time now = environment_.clock.Now();
  const double seconds = absl::ToDoubleSeconds(now - step_opened_);
  StepTiming timing{.step = step_,
                    .seconds = seconds,
                    .synchronization = job_.job.train.synchronization,
                    .reported_at = reported_at_};
  for (auto& report : reports_) {
    timing.reports.push_back(*std::move(report));
  }
  last_steps_ = DescribeStep(timing);
  double busy_seconds = 0;
  for (const proto::FinishedReport& report : timing.reports) {
    busy_seconds += report.busy_seconds();
  }
  measurements_->AddStep(plan_, busy_seconds, seconds);
  proto::JobEvent event;
  proto::StepEvent& done = *event.mutable_step();
  done.set_step(step_);
  done.set_loss(totals.loss);
  done.set_grad_norm(totals.grad_norm);
  done.set_learning_rate(learning_rate);
  done.set_tokens(plan_.tokens);
  done.set_target_tokens(plan_.targets);
  done.set_step_seconds(seconds);
  done.set_tokens_per_second(seconds > 0 ? static_cast<double>(plan_.tokens) / seconds : 0);
  done.set_total_steps(job_.last_step);
  done.set_idle_share(IdleShare(timing));
  done.set_predicted_idle_share(predicted_idle_share_);
  done.set_emulated(job_.job.emulate.enabled());
  environment_.metrics.OnStep(done, absl::ToDoubleSeconds(now - absl::UnixEpoch()));
  environment_.events.Append(std::move(event));
  for (size_t worker = 0; worker < timing.reports.size(); ++worker) {
    if (timing.reports[worker].spans_size() > 0) {
      environment_.events.Append(MakeTrace(static_cast<int>(worker), timing.reports[worker]));
    }
  }
}

const proto::LastStep* JobRun::LastStepOf(uint64_t incarnation) const {
  for (size_t worker = 0; worker < last_steps_.size(); ++worker) {
    if (workers_[worker].incarnation == incarnation) {
      return &last_steps_[worker];
    }
  }
  return nullptr;
}

}  // namespace shoal::server

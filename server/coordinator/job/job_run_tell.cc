// What is told of a committed step: its event, metrics, timeline and where each worker's time went.
#include <numeric>

#include "server/coordinator/job/job_run.h"
#include "server/coordinator/job/step_timing.h"

namespace shoal::server {
namespace {

proto::JobEvent MakeTrace(int worker, const std::string& place, proto::FinishedReport& report) {
  proto::JobEvent event;
  proto::TraceEvent& trace = *event.mutable_trace();
  trace.set_worker(worker);
  trace.set_step(report.step());
  trace.set_attempt(report.attempt());
  trace.mutable_spans()->Swap(report.mutable_spans());
  trace.set_dropped(report.dropped_spans());
  trace.mutable_copies()->Swap(report.mutable_copies());
  trace.set_place(place);
  return event;
}

}  // namespace

void JobRun::TellStep(const StepTotals& totals, double learning_rate) {
  const absl::Time now = environment_.clock.Now();
  const double seconds = absl::ToDoubleSeconds(now - step_opened_);
  StepTiming timing{.step = step_,
                    .seconds = seconds,
                    .synchronization = job_.job.train.synchronization,
                    .groups = groups_,
                    .reported_at = reported_at_};
  for (auto& report : reports_) {
    timing.reports.push_back(*std::move(report));
  }
  last_steps_ = DescribeStep(timing);
  std::vector<double> busy;
  for (const proto::FinishedReport& report : timing.reports) {
    busy.push_back(report.busy_seconds());
  }
  RanStep ran{.busy_seconds = std::accumulate(busy.begin(), busy.end(), 0.0), .seconds = seconds};
  for (size_t group = 0; group < groups_.groups(); ++group) {
    ran.pace_seconds += busy[groups_.PaceOf(group, busy)];
  }
  measurements_->AddStep(plan_, ran);
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
  Append(std::move(event));
  for (size_t worker = 0; worker < timing.reports.size(); ++worker) {
    if (timing.reports[worker].spans_size() > 0) {
      Append(MakeTrace(static_cast<int>(worker), groups_.Place(worker), timing.reports[worker]));
    }
  }
}

const proto::LastStep* JobRun::LastStepOf(uint64_t incarnation) const {
  const std::optional<size_t> worker = WorkerOf(incarnation);
  return worker.has_value() && *worker < last_steps_.size() ? &last_steps_[*worker] : nullptr;
}

}  // namespace shoal::server

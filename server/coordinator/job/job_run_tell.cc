// What is told of a job: its events and record, and of a committed step also metrics, timeline and
// where each worker's time went.
#include <numeric>

#include "core/base/logging.h"
#include "core/rpc/member_session.h"
#include "server/coordinator/job/job_run.h"
#include "server/coordinator/record/event_json.h"
#include "server/coordinator/step/step_timing.h"

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

proto::JobEvent MakeServerTrace(int server, int64_t step, int64_t attempt,
                                const proto::CommitReply& reply) {
  proto::JobEvent event;
  proto::TraceEvent& trace = *event.mutable_trace();
  trace.set_server(server);
  trace.set_step(step);
  trace.set_attempt(attempt);
  *trace.mutable_served() = reply.spans();
  trace.set_dropped(reply.dropped_spans());
  return event;
}

double FlopsOf(const plan::StepPlan& plan, const plan::CostModel& flops) {
  double sum = 0;
  for (const std::vector<plan::Microbatch>& group : plan.workers) {
    for (const plan::Microbatch& microbatch : group) {
      sum += flops.Microbatch(microbatch.tokens, microbatch.squared_tokens);
    }
  }
  return sum;
}

}  // namespace

// What is known of a step before it is committed.
proto::StepEvent JobRun::DescribeCommit(const StepTotals& totals, double learning_rate) const {
  proto::StepEvent event;
  const double seconds = absl::ToDoubleSeconds(environment_.clock.Now() - step_opened_);
  event.set_step(step_);
  event.set_loss(totals.loss);
  event.set_grad_norm(totals.grad_norm);
  event.set_learning_rate(learning_rate);
  event.set_tokens(plan_.tokens);
  event.set_target_tokens(plan_.targets);
  event.set_step_seconds(seconds);
  event.set_tokens_per_second(seconds > 0 ? static_cast<double>(plan_.tokens) / seconds : 0);
  event.set_total_steps(job_.last_step);
  event.set_predicted_idle_share(predicted_idle_share_);
  event.set_emulated(job_.job.emulate.enabled());
  if (job_.pairs != nullptr) {
    *event.mutable_preference() = job_.pairs->Measure(plan_, *ledger_, /*of_validation=*/false);
  }
  return event;
}

// Numbers that a checkpoint has too.
void JobRun::TakeCommitted(const proto::StepEvent& committed) {
  norms_ = committed.norms();
  if (committed.skipped().empty()) {
    last_loss_ = committed.loss();
  }
}

// The workers' part of the timeline of the attempt that ends.
std::vector<proto::JobEvent> JobRun::TakeTraces() {
  std::vector<proto::JobEvent> traces;
  for (size_t worker = 0; worker < reports_.size(); ++worker) {
    if (auto& report = reports_[worker]; report.has_value() && report->spans_size() > 0) {
      traces.push_back(MakeTrace(static_cast<int>(worker), groups_.Place(worker), *report));
    }
  }
  return traces;
}

void JobRun::TellStep(proto::StepEvent committed, const std::vector<proto::CommitReply>& replies) {
  if (!committed.skipped().empty()) {
    environment_.metrics.skipped_steps.Increment();
    LogWarning("step {} is skipped: {}", committed.step(), committed.skipped());
  }
  if (const std::string why = UnlikeReference(job_.job, committed); !why.empty()) {
    TellWarning(why);
  }
  std::vector<proto::JobEvent> events = TakeTraces();
  const absl::Time now = environment_.clock.Now();
  const double seconds = absl::ToDoubleSeconds(now - step_opened_);
  StepTiming timing{.step = step_,
                    .seconds = seconds,
                    .synchronization = job_.job.train.synchronization,
                    .groups = groups_,
                    .reported_at = reported_at_};
  for (auto& report : reports_) {  // none of a worker that was lost
    timing.reports.push_back(std::move(report).value_or(proto::FinishedReport()));
  }
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
  done = std::move(committed);
  done.set_step_seconds(seconds);
  done.set_tokens_per_second(seconds > 0 ? static_cast<double>(plan_.tokens) / seconds : 0);
  done.set_idle_share(IdleShare(timing));
  const double flops = FlopsOf(plan_, job_.flops);
  mfu_ = Utilization(flops, timing);
  DescribeStep(timing, last_steps_);
  done.set_mfu(mfu_);
  environment_.metrics.OnStep(done,
                              {.flops = flops,
                               .target_steps = job_.last_step,
                               .unix_seconds = absl::ToDoubleSeconds(now - absl::UnixEpoch())});
  for (size_t server = 0; server < replies.size(); ++server) {
    if (replies[server].spans_size() > 0) {
      events.push_back(MakeServerTrace(static_cast<int>(server), step_, attempt_, replies[server]));
    }
  }
  events.push_back(std::move(event));
  Append(std::move(events));
}

void JobRun::SetState(const std::string& state) {
  if (state_ == state) {
    return;
  }
  state_ = state;
  if (phase_ != Phase::kWaiting || waiting_since_.has_value()) {  // its turn has come
    environment_.metrics.OnJob(job_.job);
    if (validation_.has_value()) {  // of an earlier run or life
      environment_.metrics.OnValidation(*validation_);
    }
    environment_.metrics.OnState(
        state, absl::ToDoubleSeconds(environment_.clock.Now() - absl::UnixEpoch()));
  }
  state_since_ = environment_.clock.Now();
  if (!closed()) {
    TellState();
  }
}

void JobRun::TellState() {
  LogInfo("{}", state_);
  proto::JobEvent event;
  event.mutable_state()->set_state(state_);
  Append(std::move(event));
}

void JobRun::TellWarning(const std::string& text) {
  LogWarning("{}", text);
  proto::JobEvent event;
  event.set_warning(text);
  Append(std::move(event));
}

void JobRun::Append(proto::JobEvent event) {
  Append(std::vector<proto::JobEvent>{std::move(event)});
}

// Only the last one has a line in the record: those before it are timelines.
void JobRun::Append(std::vector<proto::JobEvent> events) {
  for (proto::JobEvent& event : events) {
    event.set_job_id(job_.id);
    event.set_time(absl::ToDoubleSeconds(environment_.clock.Now() - absl::UnixEpoch()));
  }
  proto::JobEvent last = events.back();
  // A job that a later life goes on with has an end in this one only.
  const bool outlives = !(suspended_ && EndsJob(last));
  last.set_number(events_->Append(std::move(events), outlives));
  RecordEvent(last);
}

void JobRun::RecordEvent(const proto::JobEvent& event) {
  Json line;
  switch (event.event_case()) {
    case proto::JobEvent::kStep:
      line = ToJson(event.step());
      if (!last_steps_.empty()) {
        line["time_shares"] = MeanShares(last_steps_);
      }
      break;
    case proto::JobEvent::kValidation:
      line = ToJson(event.validation());
      break;
    case proto::JobEvent::kCheckpoint:
      line = ToJson(event.checkpoint());
      break;
    case proto::JobEvent::kRestart:
      line = ToJson(event.restart());
      break;
    case proto::JobEvent::kWarning:
      line = {{"event", "warning"}, {"step", step_}, {"message", event.warning()}};
      break;
    case proto::JobEvent::kDone:
      line = ToJson(event.done());
      break;
    case proto::JobEvent::kFailed:
      line = ToJson(event.failed());
      break;
    default:
      return;
  }
  line["number"] = event.number();
  Record(std::move(line));
  if (event.has_step()) {
    record_->Open();  // a run without a step leaves the record of the one before
  }
}

// How many partitions each server is the primary of.
Json JobRun::Held() {
  Json held = Json::array();
  for (const proto::HeldPartitions& server : Forms().by_servers) {
    held.push_back(server.partitions_size());
  }
  return held;
}

void JobRun::RecordStart() {
  const bool resumes = version_ > 0;
  Json line = {{"event", resumes ? "resume" : "start"},
               {"job_id", job_.id},
               {"step", version_},
               {"total_steps", job_.last_step},
               {"servers", servers_.size()},
               {"workers", workers_.size()},
               {"held", Held()},
               {"version", rpc::ProgramVersion()},
               {"members", Json::array()}};
  if (resumes) {
    line["checkpoint"] = newest_checkpoint_->path;
  }
  for (const std::vector<Member>* members : {&servers_, &workers_}) {
    for (const Member& member : *members) {
      Json facts = {{"role", members == &servers_ ? "server" : "worker"},
                    {"index", member.index},
                    {"host", member.host},
                    {"pid", member.pid}};
      facts.update(ToJson(member.facts));
      line["members"].push_back(std::move(facts));
    }
  }
  Record(std::move(line));
  if (resumes) {
    record_->Open();
  }
}

void JobRun::Record(Json line) {
  line["time"] = absl::ToDoubleSeconds(environment_.clock.Now() - absl::UnixEpoch());
  record_->Add(line);
}

const proto::LastStep* JobRun::LastStepOf(uint64_t incarnation) const {
  const std::optional<size_t> worker = WorkerOf(incarnation);
  return worker.has_value() && *worker < last_steps_.size() && last_steps_[*worker].step() > 0
             ? &last_steps_[*worker]
             : nullptr;
}

}  // namespace shoal::server

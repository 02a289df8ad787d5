#include "cli/run/trace_recorder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/base/status.h"
#include "core/base/time_kind.h"
#include "fmt/format.h"

namespace shoal::cli {
namespace {

using formats::TraceRow;

// Processes of a timeline: workers by number, then servers, then the job, which comes first on the
// screen.
constexpr int64_t kFirstServer = 1'000'000;
constexpr int64_t kJob = 2'000'000;

constexpr std::array<std::string_view, 3> kServerKindNames = {"accumulate", "seal", "update"};

// Far enough within a span that a viewer finds it there, which reads times in microseconds as
// doubles.
int64_t JustBeforeEnd(const TraceArrows::Span& span) {
  constexpr int64_t kWithin = 1000;
  return span.end - std::min(kWithin, (span.end - span.start) / 2);
}

int64_t ToNanoseconds(double seconds) { return std::llround(seconds * 1e9); }

// "worker-3" is worker 3.
std::optional<int> WorkerNamed(std::string_view name) {
  constexpr std::string_view kPrefix = "worker-";
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  name.remove_prefix(kPrefix.size());
  int number = 0;
  const auto read = std::from_chars(name.data(), name.data() + name.size(), number);
  return read.ec == std::errc() ? std::optional(number) : std::nullopt;
}

std::string WaitedFor(TimeKind kind, const proto::Span& span) {
  if (!span.has_waited_for()) {
    return "";
  }
  return fmt::format("{}-{}", kind == TimeKind::kGetWait ? "server" : "worker", span.waited_for());
}

std::optional<TraceArrows::Others> OthersOf(TimeKind kind, bool names_one) {
  switch (kind) {
    case TimeKind::kStepWait:
      return TraceArrows::Others::kWorkersThenServers;
    case TimeKind::kLayerWait:
      return TraceArrows::Others::kWorkers;
    case TimeKind::kPushWait:
      return TraceArrows::Others::kPushes;
    case TimeKind::kNeighbourWait:
      return names_one ? std::optional(TraceArrows::Others::kOneWorker) : std::nullopt;
    default:
      return std::nullopt;  // a get has no span at the server
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<TraceRecorder>> TraceRecorder::Create(const std::string& path,
                                                                     std::string_view about) {
  SHOAL_ASSIGN_OR_RETURN(auto file, formats::TraceFile::Create(path, {{"run", about}}));
  return std::unique_ptr<TraceRecorder>(new TraceRecorder(path, std::move(file)));
}

void TraceRecorder::Add(const proto::JobEvent& event) {
  if (!event.has_trace()) {
    AddOfJob(event);
    return;
  }
  if (event.trace().has_server()) {
    AddServer(event.trace());
  } else {
    AddWorker(event.trace());
    AddCopies(event.trace());
  }
  dropped_ += event.trace().dropped();
}

void TraceRecorder::Name(TraceRow row, const std::string& process, const std::string& thread) {
  if (ends_.contains({row.process, row.thread})) {
    return;
  }
  const auto first = ends_.lower_bound({row.process, 0});
  if (first == ends_.end() || first->first.first != row.process) {
    file_->NameProcess(row.process, process,
                       row.process == kJob ? std::optional<int64_t>(-1) : std::nullopt);
  }
  file_->NameThread(row, thread);
  ends_[{row.process, row.thread}] = 0;
}

TraceArrows::Span TraceRecorder::AddSpan(TraceArrows::Span span, std::string_view name,
                                         formats::TraceArguments arguments) {
  int64_t& end = ends_[{span.row.process, span.row.thread}];
  span.start = std::max(span.start, end);
  span.end = std::max(span.end, span.start);
  end = span.end;
  file_->AddSpan(span.row, name, span.start, span.end - span.start, arguments);
  return span;
}

void TraceRecorder::SetCounter(std::string_view name, int64_t at, double value) {
  if (std::isfinite(value)) {
    file_->SetCounter(kJob, name, at, value);
  }
}

void TraceRecorder::AddWorker(const proto::TraceEvent& event) {
  const TraceRow row = {.process = event.worker(), .thread = 0};
  Name(row,
       fmt::format("worker-{}{}{}", event.worker(), event.place().empty() ? "" : ": ",
                   event.place()),
       "compute");
  for (const proto::Span& span : event.spans()) {
    if (span.kind() < 0 || span.kind() >= static_cast<int>(kTimeKinds)) {
      continue;  // of a newer worker
    }
    const auto kind = static_cast<TimeKind>(span.kind());
    const TraceArrows::Span done = AddSpan({.row = row,
                                            .start = span.start_nanoseconds(),
                                            .end = span.start_nanoseconds() + span.nanoseconds()},
                                           shoal::Name(kind),
                                           {{"step", event.step()},
                                            {"attempt", event.attempt()},
                                            {"microbatch", int64_t{span.microbatch()}},
                                            {"unit", int64_t{span.unit()}},
                                            {"waited_for", WaitedFor(kind, span)}});
    if (kind == TimeKind::kForward || kind == TimeKind::kBackward) {
      arrows_.AddWork(event.worker(), done);
    } else if (const auto others = OthersOf(kind, span.has_waited_for()); others.has_value()) {
      arrows_.AddWait(done, event.worker(), *others, span.waited_for());
    }
  }
}

// A stream's copies follow each other, and are told by microbatch.
void TraceRecorder::AddCopies(const proto::TraceEvent& event) {
  std::vector<proto::CopySpan> copies(event.copies().begin(), event.copies().end());
  std::ranges::stable_sort(copies, {}, &proto::CopySpan::start_nanoseconds);
  for (const proto::CopySpan& copy : copies) {
    const std::string name = copy.reload() ? "reload" : "offload";
    const TraceRow row = {.process = event.worker(), .thread = copy.reload() ? 2 : 1};
    Name(row, "", name);
    AddSpan({.row = row,
             .start = copy.start_nanoseconds(),
             .end = copy.start_nanoseconds() + copy.nanoseconds()},
            name,
            {{"step", event.step()},
             {"attempt", event.attempt()},
             {"microbatch", int64_t{copy.microbatch()}},
             {"chunk", int64_t{copy.chunk()}}});
  }
}

void TraceRecorder::AddServer(const proto::TraceEvent& event) {
  const std::string process = fmt::format("server-{}", event.server());
  std::vector<proto::ServerSpan> spans(event.served().begin(), event.served().end());
  std::ranges::stable_sort(spans, {}, &proto::ServerSpan::start_nanoseconds);
  for (const proto::ServerSpan& span : spans) {
    if (span.kind() < 0 || span.kind() >= static_cast<int>(kServerKindNames.size())) {
      continue;  // of a newer server
    }
    const bool push = span.kind() == proto::ServerSpan::KIND_ACCUMULATE;
    const TraceRow row = {.process = kFirstServer + event.server(),
                          .thread = push ? span.thread() + 1 : 0};
    Name(row, process, push ? fmt::format("pushes {}", span.thread()) : "step");
    const std::string_view name = kServerKindNames[static_cast<size_t>(span.kind())];
    TraceArrows::Span served = {.row = row,
                                .start = span.start_nanoseconds(),
                                .end = span.start_nanoseconds() + span.nanoseconds()};
    served = push ? AddSpan(served, name,
                            {{"step", event.step()},
                             {"attempt", event.attempt()},
                             {"client", span.client()},
                             {"partition", int64_t{span.partition()}}})
                  : AddSpan(served, name, {{"step", event.step()}, {"attempt", event.attempt()}});
    if (!push) {
      arrows_.AddEndOfStep(event.server(), served);
    } else if (const std::optional<int> worker = WorkerNamed(span.client()); worker.has_value()) {
      arrows_.AddPush(*worker, served);
    }
  }
}

void TraceRecorder::AddOfJob(const proto::JobEvent& event) {
  const TraceRow steps = {.process = kJob, .thread = 0};
  const TraceRow checkpoints = {.process = kJob, .thread = 1};
  const int64_t end = ToNanoseconds(event.time());
  if (event.has_step()) {
    Name(steps, event.job_id(), "steps");
    AddStep(event.step(), end);
  } else if (event.has_validation()) {
    const proto::ValidationEvent& validation = event.validation();
    Name(steps, event.job_id(), "steps");
    AddSpan({.row = steps, .start = end - ToNanoseconds(validation.seconds()), .end = end},
            "validation", {{"step", validation.step()}, {"loss", validation.loss()}});
    SetCounter("validation loss", end, validation.loss());
  } else if (event.has_checkpoint()) {
    const proto::CheckpointEvent& checkpoint = event.checkpoint();
    Name(checkpoints, event.job_id(), "checkpoints");
    AddSpan({.row = checkpoints, .start = end - ToNanoseconds(checkpoint.seconds()), .end = end},
            checkpoint.error().empty() ? "checkpoint" : "failed checkpoint",
            {{"step", checkpoint.step()}, {"error", checkpoint.error()}});
  }
}

void TraceRecorder::AddStep(const proto::StepEvent& step, int64_t end) {
  const std::string name = fmt::format("step {}", step.step());
  AddSpan({.row = {.process = kJob, .thread = 0},
           .start = end - ToNanoseconds(step.step_seconds()),
           .end = end},
          name,
          {{"loss", step.loss()},
           {"tokens", step.tokens()},
           {"idle_share", step.idle_share()},
           {"skipped", step.skipped()}});
  SetCounter("loss", end, step.loss());
  SetCounter("tokens/s", end, step.tokens_per_second());
  for (const TraceArrows::Arrow& arrow : arrows_.EndStep()) {
    const int64_t from = JustBeforeEnd(arrow.from);
    file_->AddArrow("waited for", arrow.from.row, from, arrow.to.row,
                    std::max(from, JustBeforeEnd(arrow.to)));
  }
}

absl::StatusOr<std::string> TraceRecorder::Finish() {
  SHOAL_RETURN_IF_ERROR(file_->Finish());
  std::string text =
      fmt::format("timeline: {} ({} spans; opens in ui.perfetto.dev)", path_, file_->spans());
  if (dropped_ > 0) {
    text += fmt::format("; {} spans found no room and are not in it", dropped_);
  }
  return text;
}

}  // namespace shoal::cli

#include "cli/run/trace_recorder.h"

#include <algorithm>

#include "core/base/status.h"
#include "core/base/time_kind.h"
#include "fmt/format.h"

namespace shoal::cli {

absl::StatusOr<std::unique_ptr<TraceRecorder>> TraceRecorder::Create(const std::string& path,
                                                                     std::string_view about) {
  SHOAL_ASSIGN_OR_RETURN(auto file, formats::TraceFile::Create(path, {{"run", about}}));
  return std::unique_ptr<TraceRecorder>(new TraceRecorder(path, std::move(file)));
}

void TraceRecorder::Add(const proto::TraceEvent& event) {
  const formats::TraceRow row = {.process = event.worker(), .thread = 0};
  if (named_.insert(event.worker()).second) {
    file_->NameProcess(row.process, fmt::format("worker-{}{}{}", event.worker(),
                                                event.place().empty() ? "" : ": ", event.place()));
    file_->NameThread(row, "compute");
  }
  for (const proto::Span& span : event.spans()) {
    if (span.kind() < 0 || span.kind() >= static_cast<int>(kTimeKinds)) {
      continue;  // of a newer worker
    }
    file_->AddSpan(row, kTimeKindNames[static_cast<size_t>(span.kind())], span.start_nanoseconds(),
                   std::max<int64_t>(0, span.nanoseconds()),
                   {{"step", event.step()},
                    {"attempt", event.attempt()},
                    {"microbatch", int64_t{span.microbatch()}},
                    {"unit", int64_t{span.unit()}}});
  }
  for (const proto::CopySpan& copy : event.copies()) {
    const formats::TraceRow copies = {.process = event.worker(), .thread = copy.reload() ? 2 : 1};
    const std::string_view name = copy.reload() ? "reload" : "offload";
    if (named_copies_.insert({event.worker(), copy.reload()}).second) {
      file_->NameThread(copies, name);
    }
    file_->AddSpan(copies, name, copy.start_nanoseconds(), std::max<int64_t>(0, copy.nanoseconds()),
                   {{"step", event.step()},
                    {"attempt", event.attempt()},
                    {"microbatch", int64_t{copy.microbatch()}},
                    {"chunk", int64_t{copy.chunk()}}});
  }
  dropped_ += event.dropped();
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

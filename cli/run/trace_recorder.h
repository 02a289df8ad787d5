// Writes what a job tells of its steps into a timeline (core/base/trace/trace_file.h):
// - a process for each worker: a span for each stretch of one kind of time, and in rows of their
//   own one for each copy of activations;
// - one for each server: pushes that it adds, by the thread that does, and what the end of a step
//   has it do;
// - one for the job: steps, validations and checkpoints, and counters of loss and speed;
// - arrows from who was waited for, where a timeline shows that, to who waited.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/run/trace_arrows.h"
#include "core/base/trace/trace_file.h"
#include "proto/coordinator.pb.h"

namespace shoal::cli {

class TraceRecorder {
 public:
  // Fails at once where `path` cannot be written. `about` says what kind of run it is.
  static absl::StatusOr<std::unique_ptr<TraceRecorder>> Create(const std::string& path,
                                                               std::string_view about);

  // Every event, in turn.
  void Add(const proto::JobEvent& event);
  // Writes the end. A line for the user: how many spans, and whether some are missing.
  absl::StatusOr<std::string> Finish();

 private:
  TraceRecorder(std::string path, std::unique_ptr<formats::TraceFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  void AddWorker(const proto::TraceEvent& event);
  void AddCopies(const proto::TraceEvent& event);
  void AddServer(const proto::TraceEvent& event);
  void AddOfJob(const proto::JobEvent& event);
  void AddStep(const proto::StepEvent& step, int64_t end);
  // Rows and processes are named when they are first seen.
  void Name(formats::TraceRow row, const std::string& process, const std::string& thread);
  // Clocks of several machines, and lives of one worker, may disagree: a span begins no earlier
  // than the one before it in its row ended. Returns it as it is written.
  TraceArrows::Span AddSpan(TraceArrows::Span span, std::string_view name,
                            formats::TraceArguments arguments);
  // Of the job. What is not finite is no number of JSON, and is left out.
  void SetCounter(std::string_view name, int64_t at, double value);

  const std::string path_;
  const std::unique_ptr<formats::TraceFile> file_;
  std::map<std::pair<int64_t, int64_t>, int64_t> ends_;  // of rows so far, by process and thread
  TraceArrows arrows_;
  int64_t dropped_ = 0;
};

}  // namespace shoal::cli

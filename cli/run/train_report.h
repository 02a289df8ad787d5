// How `shoal train` shows a run: JSON lines on stdout (the exact fields that docs/metrics.md
// lists), or for a person a progress bar on stderr where that is a terminal and plain lines on
// stdout where it is not.
#pragma once

#include <optional>
#include <string>

#include "cli/run/command.h"
#include "cli/run/follow_job.h"
#include "cli/run/trace_recorder.h"
#include "cli/terminal/progress_bar.h"

namespace shoal::cli {

class TrainReport : public RunReporter {
 public:
  TrainReport(Streams& streams, bool json, Clock& clock = RealClock());

  void OnStep(const proto::StepEvent& event) override;
  void OnValidation(const proto::ValidationEvent& event) override;
  void OnCheckpoint(const proto::CheckpointEvent& event) override;
  void OnState(const std::string& state) override;
  void OnEvent(const proto::JobEvent& event) override;
  void OnNotice(const std::string& text) override;
  // Where timelines go; null: nowhere.
  void RecordTraces(TraceRecorder* recorder) { recorder_ = recorder; }
  // Items of preparation.
  void OnProgress(const std::string& what, int64_t done, int64_t total);
  void Clear() { bar_.Clear(); }

  // The last line: done, interrupted or failed. JSON only.
  void PrintEnd(const RunEnd& end);

  // Over the steps seen.
  std::optional<double> first_loss() const { return first_loss_; }
  int64_t tokens() const { return tokens_; }
  double seconds() const { return seconds_; }

 private:
  Streams& streams_;
  const bool json_;
  ProgressBar bar_;
  TraceRecorder* recorder_ = nullptr;
  std::optional<double> first_loss_;
  std::optional<double> validation_loss_;  // the newest
  int64_t tokens_ = 0;
  double seconds_ = 0;
};

// What validations came to, in lines that begin with a line's end; empty: there was none.
std::string DescribeValidation(const RunEnd& end);
// Of which step the model is that is left, where that is not the last: " (of step 40, ...)".
std::string WhichStep(const RunEnd& end);

}  // namespace shoal::cli

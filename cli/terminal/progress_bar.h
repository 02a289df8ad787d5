// Progress of a run, for a person. On a terminal: one line that is redrawn in place, at most ten
// times a second, with now and then a line that stays, so that the way down of the loss can be read
// afterwards. Elsewhere: plain lines, the first, the last and at most one every two seconds in
// between. Not thread-safe.
#pragma once

#include <optional>
#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "cli/terminal/terminal.h"
#include "core/base/clock.h"

namespace shoal::cli {

struct StepProgress {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0;
  std::optional<double> validation_loss;  // the newest
  double grad_norm = 0;
  double learning_rate = 0;
  double tokens_per_second = 0;
  double step_seconds = 0;
  double mfu = 0;  // 0: unknown
};

class ProgressBar {
 public:
  ProgressBar(std::ostream& stream, const Terminal& terminal, Clock& clock)
      : stream_(stream), terminal_(terminal), clock_(clock) {}
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Step(const StepProgress& progress);
  // Work counted in items, e.g. samples tokenised. `total` 0: unknown.
  void Items(const std::string& what, int64_t done, int64_t total);
  // A line that stays, above the bar.
  void Line(const std::string& text);
  // Takes the bar off the screen.
  void Clear();

 private:
  bool Due(bool first_or_last);
  void Draw(const std::string& text);
  std::string StepLine(const StepProgress& progress) const;
  std::string Bar(double fraction, int columns) const;
  double SecondsLeft(const StepProgress& progress);

  std::ostream& stream_;
  const Terminal terminal_;
  Clock& clock_;
  absl::Time last_drawn_ = absl::InfinitePast();
  bool on_screen_ = false;
  int64_t last_kept_tenth_ = -1;  // which tenth of the run the last line that stays was in
  std::optional<double> typical_step_seconds_;  // moving average
};

}  // namespace shoal::cli

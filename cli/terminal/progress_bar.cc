#include "cli/terminal/progress_bar.h"

#include <algorithm>

#include "fmt/format.h"

namespace shoal::cli {
namespace {

constexpr absl::Duration kRedrawInterval = absl::Milliseconds(100);
constexpr absl::Duration kPlainInterval = absl::Seconds(2);
constexpr int kKeptLines = 10;  // lines of a whole run that stay above the bar
constexpr int kBarColumns = 24;
constexpr double kAverageWeight = 0.1;  // of the newest step in the moving average of step times

}  // namespace

void ProgressBar::Step(const StepProgress& progress) {
  const double left = SecondsLeft(progress);
  const bool last = progress.step >= progress.total_steps;
  const bool first = last_kept_tenth_ < 0;
  const int64_t total = std::max<int64_t>(1, progress.total_steps);
  const int64_t tenth = progress.step * kKeptLines / total;
  const std::string text = StepLine(progress);
  // Last: a narrow terminal cuts it off.
  const std::string more = fmt::format(", norm {:.3g}, learning rate {:.3g}{}", progress.grad_norm,
                                       progress.learning_rate, FormatMfu(progress.mfu));
  if (terminal_.interactive && (first || last || tenth != last_kept_tenth_)) {
    last_kept_tenth_ = tenth;
    Line(text + more);
  }
  if (!Due(first || last)) {
    return;
  }
  if (!terminal_.interactive) {
    last_kept_tenth_ = tenth;
    stream_ << text << more << "\n" << std::flush;
    return;
  }
  const double fraction = static_cast<double>(progress.step) / static_cast<double>(total);
  Draw(
      fmt::format("{} {}, {} left{}", Bar(fraction, kBarColumns), text, FormatSeconds(left), more));
}

void ProgressBar::Items(const std::string& what, int64_t done, int64_t total) {
  if (!Due(total > 0 && done >= total)) {
    return;
  }
  const std::string count = total > 0
                                ? fmt::format("{} of {}", WithThousands(done), WithThousands(total))
                                : WithThousands(done);
  if (!terminal_.interactive) {
    stream_ << what << ": " << count << "\n" << std::flush;
    return;
  }
  const double fraction = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0.0;
  Draw(fmt::format("{} {}: {}", Bar(fraction, kBarColumns), what, count));
}

void ProgressBar::Line(const std::string& text) {
  Clear();
  stream_ << text << "\n" << std::flush;
}

void ProgressBar::Clear() {
  if (on_screen_) {
    stream_ << "\r\033[K" << std::flush;
    on_screen_ = false;
    last_drawn_ = absl::InfinitePast();
  }
}

bool ProgressBar::Due(bool first_or_last) {
  const absl::Time now = clock_.Now();
  const absl::Duration interval = terminal_.interactive ? kRedrawInterval : kPlainInterval;
  if (!first_or_last && now - last_drawn_ < interval) {
    return false;
  }
  last_drawn_ = now;
  return true;
}

void ProgressBar::Draw(const std::string& text) {
  // One column stays free: a full line would wrap on some terminals.
  stream_ << "\r\033[K" << Shorten(text, terminal_.width - 1) << std::flush;
  on_screen_ = true;
}

std::string ProgressBar::StepLine(const StepProgress& progress) const {
  const std::string validation =
      progress.validation_loss.has_value()
          ? fmt::format(" (validation {:.4f})", *progress.validation_loss)
          : "";
  return fmt::format(
      "step {}/{}, loss {:.4f}{}, {} tokens/s", progress.step, progress.total_steps, progress.loss,
      validation,
      WithThousands(static_cast<int64_t>(std::clamp(progress.tokens_per_second, 0.0, 1e15))));
}

std::string ProgressBar::Bar(double fraction, int columns) const {
  const int full = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * columns);
  return fmt::format("[{}{}]", std::string(static_cast<size_t>(full), '='),
                     std::string(static_cast<size_t>(columns - full), ' '));
}

double ProgressBar::SecondsLeft(const StepProgress& progress) {
  typical_step_seconds_ =
      typical_step_seconds_.has_value()
          ? *typical_step_seconds_ * (1 - kAverageWeight) + progress.step_seconds * kAverageWeight
          : progress.step_seconds;
  return *typical_step_seconds_ *
         static_cast<double>(std::max<int64_t>(0, progress.total_steps - progress.step));
}

}  // namespace shoal::cli

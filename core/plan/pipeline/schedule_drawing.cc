#include "core/plan/pipeline/schedule_drawing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/bytes.h"
#include "core/plan/pipeline/svg.h"
#include "fmt/format.h"

namespace shoal::plan {
namespace {

constexpr double kLeft = 76;
constexpr double kRight = 190;  // for the peaks
constexpr double kTop = 84;
constexpr double kComputeHeight = 22;
constexpr double kCopyHeight = 12;  // upper half offloads, lower half reloads
constexpr double kRowGap = 9;
constexpr double kAxisHeight = 44;
// The width of a typical compute span, and the limits of the whole.
constexpr double kCellWidth = 17;
constexpr double kNarrowest = 560;
constexpr double kWidest = 3600;
constexpr double kDigitWidth = 6.2;
// The share of white in the shade of the last chunk.
constexpr double kPalest = 0.5;

struct Colour {
  int red = 0;
  int green = 0;
  int blue = 0;
};

struct OperationStyle {
  Operation operation;
  Colour colour;
  std::string_view legend;
};

constexpr std::array<OperationStyle, 6> kStyles = {{
    {Operation::kForward, {58, 134, 200}, "forward"},
    {Operation::kBackwardInput, {0, 138, 115}, "backward, input"},
    {Operation::kBackwardWeights, {222, 143, 5}, "backward, weights"},
    {Operation::kBackward, {74, 122, 58}, "backward, both"},
    {Operation::kOffload, {148, 90, 190}, "offload"},
    {Operation::kReload, {204, 86, 130}, "reload"},
}};

const OperationStyle* StyleOf(Operation operation) {
  const auto found = std::find_if(kStyles.begin(), kStyles.end(), [&](const OperationStyle& style) {
    return style.operation == operation;
  });
  return found == kStyles.end() ? nullptr : &*found;
}

std::string Hex(Colour colour, double white) {
  const auto mix = [white](int part) { return static_cast<int>(part + (255 - part) * white); };
  return fmt::format("#{:02x}{:02x}{:02x}", mix(colour.red), mix(colour.green), mix(colour.blue));
}

double WhiteOf(int chunk, int chunks) { return chunks <= 1 ? 0.0 : kPalest * chunk / (chunks - 1); }

std::string TimeText(double time, const std::string& unit) {
  return unit.empty() ? fmt::format("{:.4g}", time) : fmt::format("{:.4g} {}", time, unit);
}

// Returns the longest time before which at most that many spans begin.
double DrawnUntil(const ScheduleTimes& times, size_t max_spans) {
  std::vector<double> begins;
  for (const auto& spans : times.spans) {
    for (const ActionSpan& span : spans) {
      if (span.track != Track::kSend) {
        begins.push_back(span.begin);
      }
    }
  }
  if (begins.size() <= max_spans) {
    return times.makespan;
  }
  const auto last = begins.begin() + static_cast<std::ptrdiff_t>(max_spans);
  std::nth_element(begins.begin(), last, begins.end());
  return *last;
}

double MiddlingCompute(const ScheduleTimes& times) {
  std::vector<double> lengths;
  for (const auto& spans : times.spans) {
    for (const ActionSpan& span : spans) {
      if (span.track == Track::kCompute && span.end > span.begin) {
        lengths.push_back(span.end - span.begin);
      }
    }
  }
  if (lengths.empty()) {
    return 0;
  }
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::nth_element(lengths.begin(), middle, lengths.end());
  return *middle;
}

class Drawing {
 public:
  Drawing(const Schedule& schedule, const ScheduleTimes& times,
          const ScheduleDrawingOptions& options)
      : schedule_(schedule),
        times_(times),
        options_(options),
        until_(DrawnUntil(times, options.max_spans)),
        copies_(HasCopies(times)),
        row_height_(kComputeHeight + (copies_ ? kCopyHeight : 0) + kRowGap),
        plot_width_(PlotWidth()),
        svg_(kLeft + plot_width_ + kRight, Bottom() + kAxisHeight, schedule.name) {}

  std::string Draw() {
    Header();
    Axis();
    for (size_t stage = 0; stage < times_.spans.size(); ++stage) {
      Row(stage);
    }
    return svg_.Finish();
  }

 private:
  static bool HasCopies(const ScheduleTimes& times) {
    return std::any_of(times.spans.begin(), times.spans.end(), [](const auto& spans) {
      return std::any_of(spans.begin(), spans.end(), [](const ActionSpan& span) {
        return span.track == Track::kOffload || span.track == Track::kReload;
      });
    });
  }

  double PlotWidth() const {
    const double middling = MiddlingCompute(times_);
    const double wanted = middling > 0 ? until_ / middling * kCellWidth : kNarrowest;
    return std::clamp(wanted, kNarrowest, kWidest);
  }
  double Bottom() const { return kTop + row_height_ * static_cast<double>(times_.spans.size()); }
  double X(double time) const { return kLeft + (until_ > 0 ? time / until_ * plot_width_ : 0); }

  void Header() {
    svg_.Text({kLeft, 24}, schedule_.name, {.size = 17, .bold = true});
    const ScheduleShape& shape = schedule_.shape;
    std::string line =
        fmt::format("{} stages x {} chunks, {} microbatches; {} in all, {:.1f}% of it idle",
                    shape.stages, shape.chunks, shape.microbatches,
                    TimeText(times_.makespan, options_.time_unit), 100 * times_.BubbleShare());
    if (until_ < times_.makespan) {
      line += fmt::format("; the first {}", TimeText(until_, options_.time_unit));
    }
    if (!options_.subtitle.empty()) {
      line += "; " + options_.subtitle;
    }
    svg_.Text({kLeft, 43}, line, {.colour = kFaintInk});
    Legend();
  }

  void Legend() {
    double x = kLeft;
    for (const OperationStyle& style : kStyles) {
      const bool used = std::any_of(
          schedule_.stages.begin(), schedule_.stages.end(), [&](const StageActions& actions) {
            return std::any_of(actions.begin(), actions.end(), [&](const Action& action) {
              return action.operation == style.operation;
            });
          });
      if (used) {
        svg_.Rectangle({x, 55}, 14, 12, Hex(style.colour, 0));
        svg_.Text({x + 19, 65}, style.legend);
        x += 19 + kDigitWidth * static_cast<double>(style.legend.size()) + 18;
      }
    }
    if (schedule_.shape.chunks > 1) {
      svg_.Text({x, 65}, "paler: later chunks", {.colour = kFaintInk});
    }
  }

  void Axis() {
    for (const double tick : TicksFor(0, until_)) {
      if (tick < 0 || tick > until_) {
        continue;
      }
      svg_.Line({X(tick), kTop - 4}, {X(tick), Bottom()}, kGridLine, 1);
      svg_.Text({X(tick), Bottom() + 16}, TimeText(tick, options_.time_unit),
                {.size = 11, .anchor = "middle", .colour = kFaintInk});
    }
    svg_.Text({kLeft + plot_width_ + 12, kTop - 8}, "peak on device, on host",
              {.size = 11, .colour = kFaintInk});
  }

  void Row(size_t stage) {
    const double top = kTop + row_height_ * static_cast<double>(stage);
    svg_.Text({kLeft - 10, top + 15}, fmt::format("stage {}", stage), {.anchor = "end"});
    const double height = kComputeHeight + (copies_ ? kCopyHeight : 0);
    svg_.Rectangle({kLeft, top}, plot_width_, height, "#f6f7f9");
    for (const ActionSpan& span : times_.spans[stage]) {
      if (span.begin < until_) {
        Cell(span, top);
      }
    }
    const StageTimes& times = times_.stages[stage];
    svg_.Text({kLeft + plot_width_ + 12, top + 15},
              fmt::format("{} ({}), {}", times.peak_activations,
                          FormatBytes(times.peak_device_bytes), times.peak_host_activations),
              {.size = 11});
  }

  void Cell(const ActionSpan& span, double top) {
    const OperationStyle* const style = StyleOf(span.action.operation);
    if (style == nullptr || span.end <= span.begin) {
      return;
    }
    double y = top + 1;
    double height = kComputeHeight - 2;
    if (span.track != Track::kCompute) {
      height = kCopyHeight / 2 - 1;
      y = top + kComputeHeight + (span.track == Track::kReload ? kCopyHeight / 2 : 0);
    }
    const double left = X(span.begin);
    const double width = X(std::min(span.end, until_)) - left;
    // A hair's breadth between neighbours, if there is room.
    const double drawn = width > 4 ? width - 0.8 : width;
    const double white = WhiteOf(span.action.chunk, schedule_.shape.chunks);
    svg_.Rectangle(
        {left, y}, drawn, height, Hex(style->colour, white),
        fmt::format("{}: {} to {}", NameOf(span.action), TimeText(span.begin, options_.time_unit),
                    TimeText(span.end, options_.time_unit)));
    const std::string number = std::to_string(span.action.microbatch);
    if (span.track == Track::kCompute &&
        width > kDigitWidth * static_cast<double>(number.size()) + 3) {
      svg_.Text({left + drawn / 2, y + 14}, number,
                {.size = 11, .anchor = "middle", .colour = white < 0.3 ? "#ffffff" : kInk});
    }
  }

  const Schedule& schedule_;
  const ScheduleTimes& times_;
  const ScheduleDrawingOptions& options_;
  const double until_;
  const bool copies_;
  const double row_height_;
  const double plot_width_;
  Svg svg_;
};

}  // namespace

std::string DrawSchedule(const Schedule& schedule, const ScheduleTimes& times,
                         const ScheduleDrawingOptions& options) {
  return Drawing(schedule, times, options).Draw();
}

}  // namespace shoal::plan

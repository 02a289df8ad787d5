#include "cli/run/trace_arrows.h"

#include <algorithm>
#include <utility>

namespace shoal::cli {
namespace {

// What ended last of those while the wait lasted, and later than `latest`.
void TakeLatest(const std::vector<TraceArrows::Span>& spans, const TraceArrows::Span& wait,
                std::optional<TraceArrows::Span>& latest) {
  const auto after = std::ranges::upper_bound(spans, wait.end, {}, &TraceArrows::Span::end);
  if (after == spans.begin()) {
    return;
  }
  const TraceArrows::Span& last = *std::prev(after);
  if (last.end > wait.start && (!latest.has_value() || last.end > latest->end)) {
    latest = last;
  }
}

}  // namespace

std::optional<TraceArrows::Span> TraceArrows::CauseOf(const Wait& wait) const {
  std::optional<Span> cause;
  const auto look = [&](const Rows& rows, const auto& asked) {
    for (const auto& [number, spans] : rows) {
      if (asked(number)) {
        TakeLatest(spans, wait.span, cause);
      }
    }
  };
  const auto is_other = [&](int worker) { return worker != wait.self; };
  for (const Step* step : {&before_, &step_}) {
    switch (wait.others) {
      case Others::kOneWorker:
        look(step->workers, [&](int worker) { return worker == wait.worker; });
        break;
      case Others::kPushes:
        look(step->pushes, [&](int worker) { return worker == wait.self; });
        break;
      case Others::kWorkers:
        look(step->workers, is_other);
        break;
      case Others::kWorkersThenServers:  // work of the step that follows is no cause
        if (!cause.has_value()) {
          look(step->workers, is_other);
        }
        if (!cause.has_value()) {
          look(step->servers, [](int) { return true; });
        }
        break;
    }
  }
  return cause;
}

std::vector<TraceArrows::Arrow> TraceArrows::EndStep() {
  for (auto& [worker, spans] : step_.pushes) {
    std::ranges::stable_sort(spans, {}, &Span::end);  // of several threads and servers
  }
  std::vector<Arrow> arrows;
  for (const Wait& wait : waits_) {
    if (const std::optional<Span> cause = CauseOf(wait); cause.has_value()) {
      arrows.push_back({*cause, wait.span});
    }
  }
  waits_.clear();
  before_ = std::exchange(step_, {});
  return arrows;
}

}  // namespace shoal::cli

#include "plan/schedules/compute_times.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/status.h"
#include "plan/schedule_simulation.h"

namespace shoal::plan {
namespace {

using Times = std::vector<std::vector<TimedAction>>;

void DelayForwardsAhead(const ScheduleShape& shape, const ScheduleCosts& costs, Times& times) {
  std::vector<double> needed(static_cast<size_t>(shape.VirtualStages()) * shape.microbatches,
                             std::numeric_limits<double>::max());
  const auto key = [&](int virtual_stage, const Action& action) {
    return static_cast<size_t>(virtual_stage) * shape.microbatches + action.microbatch;
  };
  struct Ahead {
    double begin;
    int stage;
    size_t place;
  };
  std::vector<Ahead> order;
  for (int stage = 0; stage < shape.stages; ++stage) {
    bool ahead = true;
    for (size_t i = 0; i < times[stage].size(); ++i) {
      const TimedAction& timed = times[stage][i];
      if (timed.action.operation == Operation::kForward) {
        needed[key(shape.VirtualStageOf(stage, timed.action.chunk), timed.action)] = timed.begin;
      }
      ahead = ahead && timed.action.operation == Operation::kForward;
      if (ahead && i + 1 < times[stage].size()) {
        order.push_back({timed.begin, stage, i});
      }
    }
  }
  std::ranges::stable_sort(order, [](const Ahead& a, const Ahead& b) {
    return std::pair(a.begin, a.place) > std::pair(b.begin, b.place);
  });
  for (const Ahead& ahead : order) {
    TimedAction& timed = times[ahead.stage][ahead.place];
    const int here = shape.VirtualStageOf(ahead.stage, timed.action.chunk);
    double end = times[ahead.stage][ahead.place + 1].begin;
    if (here + 1 < shape.VirtualStages()) {
      const ChunkCost& cost = costs.Of(ahead.stage, timed.action.chunk, timed.action.microbatch);
      const double sending = SendsActivation(shape, here) ? cost.send_activation : 0;
      end = std::min(end, needed[key(here + 1, timed.action)] - sending);
    }
    const double later = std::max(0.0, end - timed.end);
    timed.begin += later;
    timed.end += later;
    needed[key(here, timed.action)] = timed.begin;
  }
}

}  // namespace

absl::StatusOr<Times> LatestComputeTimes(const Schedule& schedule, const ScheduleCosts& costs) {
  SHOAL_ASSIGN_OR_RETURN(const ScheduleTimes simulated,
                         SimulateSchedule(schedule, costs, {}, Spans::kCompute));
  Times times;
  for (const std::vector<ActionSpan>& spans : simulated.spans) {
    std::vector<TimedAction>& stage = times.emplace_back();
    stage.reserve(spans.size());
    for (const ActionSpan& span : spans) {
      stage.push_back({.action = span.action, .begin = span.begin, .end = span.end});
    }
  }
  DelayForwardsAhead(schedule.shape, costs, times);
  return times;
}

}  // namespace shoal::plan

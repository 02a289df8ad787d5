#include "core/plan/schedule/builders/compute_times.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace shoal::plan {
namespace {

void DelayForwardsAhead(const ScheduleShape& shape, const ScheduleCosts& costs,
                        std::vector<ComputeTimes>& times) {
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
    const ComputeTimes& of = times[stage];
    bool ahead = true;
    for (size_t i = 0; i < of.size(); ++i) {
      const Action& action = of.actions[i];
      if (action.operation == Operation::kForward) {
        needed[key(shape.VirtualStageOf(stage, action.chunk), action)] = of.begins[i];
      }
      ahead = ahead && action.operation == Operation::kForward;
      if (ahead && i + 1 < of.size()) {
        order.push_back({of.begins[i], stage, i});
      }
    }
  }
  std::ranges::stable_sort(order, [](const Ahead& a, const Ahead& b) {
    return std::pair(a.begin, a.place) > std::pair(b.begin, b.place);
  });
  for (const Ahead& ahead : order) {
    ComputeTimes& of = times[ahead.stage];
    const Action& action = of.actions[ahead.place];
    const int here = shape.VirtualStageOf(ahead.stage, action.chunk);
    double end = of.begins[ahead.place + 1];
    if (here + 1 < shape.VirtualStages()) {
      const ChunkCost& cost = costs.Of(ahead.stage, action.chunk, action.microbatch);
      const double sending = SendsActivation(shape, here) ? cost.send_activation : 0;
      end = std::min(end, needed[key(here + 1, action)] - sending);
    }
    const double later = std::max(0.0, end - of.ends[ahead.place]);
    of.begins[ahead.place] += later;
    of.ends[ahead.place] += later;
    needed[key(here, action)] = of.begins[ahead.place];
  }
}

}  // namespace

std::vector<ComputeTimes> LatestComputeTimes(const Schedule& schedule, const ScheduleCosts& costs,
                                             const ScheduleTimes& times) {
  std::vector<ComputeTimes> latest;
  for (const std::vector<ActionSpan>& spans : times.spans) {
    ComputeTimes& of = latest.emplace_back();
    of.actions.reserve(spans.size());
    of.begins.reserve(spans.size());
    of.ends.reserve(spans.size());
    for (const ActionSpan& span : spans) {
      if (span.track == Track::kCompute) {
        of.actions.push_back(span.action);
        of.begins.push_back(span.begin);
        of.ends.push_back(span.end);
      }
    }
  }
  DelayForwardsAhead(schedule.shape, costs, latest);
  return latest;
}

}  // namespace shoal::plan

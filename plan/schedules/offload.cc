#include "plan/schedules/offload.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

#include "common/status.h"
#include "fmt/format.h"

namespace shoal::plan {
namespace {

constexpr double kSlack = 1e-9;  // relative to a slot: what rounding may add to a sum of times

struct Interval {
  double begin = 0;
  double end = 0;
};

// When each compute action of a stage runs, in the order of its list.
using StagePlan = std::vector<std::pair<Action, Interval>>;

std::vector<StagePlan> ComputeTimes(const ScheduleTimes& times) {
  std::vector<StagePlan> plans;
  for (const std::vector<ActionSpan>& spans : times.spans) {
    StagePlan& plan = plans.emplace_back();
    for (const ActionSpan& span : spans) {
      if (span.lane == Lane::kCompute) {
        plan.push_back({span.action, {.begin = span.begin, .end = span.end}});
      }
    }
  }
  return plans;
}

// Moves the forwards ahead of each stage's first backward to as late as neither the stage's next
// action nor the forward of the next virtual stage waits for them.
void DelayForwardsAhead(const ScheduleShape& shape, const ScheduleCosts& costs,
                        std::vector<StagePlan>& plans) {
  std::vector<double> needed(static_cast<size_t>(shape.VirtualStages()) * shape.microbatches,
                             std::numeric_limits<double>::max());
  struct Ahead {
    double begin;
    int stage;
    size_t place;
  };
  std::vector<Ahead> order;
  for (int stage = 0; stage < shape.stages; ++stage) {
    bool ahead = true;
    for (size_t i = 0; i < plans[stage].size(); ++i) {
      const auto& [action, when] = plans[stage][i];
      if (action.operation == Operation::kForward) {
        const int here = shape.VirtualStageOf(stage, action.chunk);
        needed[static_cast<size_t>(here) * shape.microbatches + action.microbatch] = when.begin;
      }
      ahead = ahead && action.operation == Operation::kForward;
      if (ahead && i + 1 < plans[stage].size()) {
        order.push_back({when.begin, stage, i});
      }
    }
  }
  std::ranges::stable_sort(order, [](const Ahead& a, const Ahead& b) {
    return std::pair(a.begin, a.place) > std::pair(b.begin, b.place);
  });
  for (const Ahead& ahead : order) {
    auto& [action, when] = plans[ahead.stage][ahead.place];
    const int here = shape.VirtualStageOf(ahead.stage, action.chunk);
    double end = plans[ahead.stage][ahead.place + 1].second.begin;
    if (here + 1 < shape.VirtualStages()) {
      const double sending =
          SendsActivation(shape, here)
              ? costs.Of(ahead.stage, action.chunk, action.microbatch).send_activation
              : 0;
      end = std::min(
          end,
          needed[static_cast<size_t>(here + 1) * shape.microbatches + action.microbatch] - sending);
    }
    const double later = std::max(0.0, end - when.end);
    when = {.begin = when.begin + later, .end = when.end + later};
    needed[static_cast<size_t>(here) * shape.microbatches + action.microbatch] = when.begin;
  }
}

// The slots of one direction of one device: number n begins at origin + n * period.
class Slots {
 public:
  Slots(double origin, double period, double length, double until)
      : origin_(origin), period_(period), length_(length) {
    for (int64_t n = 0; origin + static_cast<double>(n) * period < until; ++n) {
      free_.insert(free_.end(), n);
    }
  }

  // The first free slot that begins at `time` or later, the last that ends by it; -1 where there is
  // none.
  int64_t FirstFrom(double time) const {
    const auto found =
        free_.lower_bound(static_cast<int64_t>(std::ceil((time - origin_) / period_ - kSlack)));
    return found == free_.end() ? -1 : *found;
  }
  int64_t LastBy(double time) const {
    const auto found = free_.upper_bound(
        static_cast<int64_t>(std::floor((time - length_ - origin_) / period_ + kSlack)));
    return found == free_.begin() ? -1 : *std::prev(found);
  }
  Interval Of(int64_t slot) const {
    const double begin = origin_ + static_cast<double>(slot) * period_;
    return {.begin = begin, .end = begin + length_};
  }
  void Take(int64_t slot) { free_.erase(slot); }

 private:
  double origin_;
  double period_;
  double length_;
  std::set<int64_t> free_;
};

struct Candidate {
  int stage = 0;
  int chunk = 0;
  int microbatch = 0;
  double forward_end = 0;
  double backward_begin = std::numeric_limits<double>::max();
};

// An action to put before the compute action with this place in its stage's plan.
struct Insertion {
  size_t before = 0;
  double time = 0;
  int rank = 0;  // at one time releases come first, but for one at the place of its own offload
  Action action;
};

class Placing {
 public:
  Placing(const ScheduleShape& shape, const ScheduleCosts& costs, CopyStreams streams,
          std::vector<StagePlan> plans)
      : shape_(shape),
        costs_(costs),
        streams_(streams),
        plans_(std::move(plans)),
        insertions_(shape.stages) {}

  // One device, or two that share a switch.
  void Place(int first_stage, int stages, const OffloadChoice& choice, OffloadPlan& result) {
    std::vector<Candidate> candidates;
    double slot = 0;
    double until = 0;
    for (int stage = first_stage; stage < first_stage + stages; ++stage) {
      AddCandidates(stage, choice[stage], candidates, slot);
      until = std::max(until, plans_[stage].back().second.end);
    }
    if (candidates.empty()) {
      return;
    }
    std::ranges::stable_sort(candidates, [](const Candidate& a, const Candidate& b) {
      return a.backward_begin - a.forward_end > b.backward_begin - b.forward_end;
    });
    const double origin = plans_[first_stage].front().second.end;
    slot = std::max(
        slot, (until - origin) * 1e-6);  // copies that take no time need no more slots than this
    const bool in_turn = !streams_.duplex || stages > 1;
    const double period = in_turn ? 2 * slot : slot;
    std::vector<Slots> offloads;
    std::vector<Slots> reloads;
    for (int turn = 0; turn < stages; ++turn) {
      offloads.emplace_back(origin + (turn == 0 ? 0 : slot), period, slot, until);
      reloads.emplace_back(origin + (in_turn && turn == 0 ? slot : 0), period, slot, until);
    }
    for (const Candidate& candidate : candidates) {
      const int turn = candidate.stage - first_stage;
      PlaceOne(candidate, offloads[turn], reloads[turn], result);
    }
  }

  // In the order in which they stand in the list.
  std::vector<Insertion> Insertions(int stage) {
    std::ranges::stable_sort(insertions_[stage], [](const Insertion& a, const Insertion& b) {
      return std::tuple(a.before, a.time, a.rank) < std::tuple(b.before, b.time, b.rank);
    });
    return std::move(insertions_[stage]);
  }

 private:
  void AddCandidates(int stage, const std::vector<bool>& chosen, std::vector<Candidate>& candidates,
                     double& slot) const {
    std::vector<Candidate> all(chosen.size());
    for (const auto& [action, when] : plans_[stage]) {
      Candidate& candidate =
          all[static_cast<size_t>(action.chunk) * shape_.microbatches + action.microbatch];
      if (action.operation == Operation::kForward) {
        candidate = {.stage = stage,
                     .chunk = action.chunk,
                     .microbatch = action.microbatch,
                     .forward_end = when.end};
      } else if (IsBackwardForInput(action.operation)) {
        candidate.backward_begin = when.begin;
      }
    }
    for (size_t key = 0; key < chosen.size(); ++key) {
      if (chosen[key]) {
        const ChunkCost& cost = costs_.Of(stage, all[key].chunk, all[key].microbatch);
        slot = std::max({slot, cost.offload, cost.reload});
        candidates.push_back(all[key]);
      }
    }
  }

  void PlaceOne(const Candidate& candidate, Slots& offloads, Slots& reloads, OffloadPlan& result) {
    const auto [stage, chunk, microbatch, forward_end, backward_begin] = candidate;
    const StagePlan& plan = plans_[stage];
    const int64_t out = offloads.FirstFrom(forward_end);
    const int64_t back = reloads.LastBy(backward_begin);
    const ChunkCost& cost = costs_.Of(stage, chunk, microbatch);
    bool gains = false;
    if (out >= 0 && back >= 0) {
      const Interval offload = offloads.Of(out);
      const Interval reload = reloads.Of(back);
      // A copy is issued when the compute before it has ended; a release stands where nobody waits
      // for its offload.
      const size_t issue = FirstEndingAfter(plan, offload.begin);
      const size_t release = FirstBeginningFrom(plan, offload.begin + cost.offload);
      const size_t prepare = FirstEndingAfter(plan, reload.end - cost.reload);
      gains = offload.end <= reload.begin + kSlack && release < prepare;
      if (gains) {
        offloads.Take(out);
        reloads.Take(back);
        std::vector<Insertion>& insertions = insertions_[stage];
        insertions.push_back({issue, offload.begin, 1, {Operation::kOffload, chunk, microbatch}});
        insertions.push_back({release,
                              offload.begin + cost.offload,
                              release == issue ? 1 : 0,
                              {Operation::kRelease, chunk, microbatch}});
        insertions.push_back({prepare, reload.begin, 1, {Operation::kPrepare, chunk, microbatch}});
        insertions.push_back({prepare, reload.begin, 1, {Operation::kReload, chunk, microbatch}});
        ++result.offloaded;
      }
    }
    if (!gains) {
      const bool brief = backward_begin - forward_end < 2 * (cost.offload + cost.reload);
      result.kept.push_back(
          {.stage = stage, .chunk = chunk, .microbatch = microbatch, .lives_too_briefly = brief});
    }
  }

  static size_t FirstEndingAfter(const StagePlan& plan, double time) {
    return std::ranges::upper_bound(plan, time + kSlack, {},
                                    [](const auto& entry) { return entry.second.end; }) -
           plan.begin();
  }
  static size_t FirstBeginningFrom(const StagePlan& plan, double time) {
    return std::ranges::lower_bound(plan, time - kSlack, {},
                                    [](const auto& entry) { return entry.second.begin; }) -
           plan.begin();
  }

  ScheduleShape shape_;
  const ScheduleCosts& costs_;
  CopyStreams streams_;
  std::vector<StagePlan> plans_;
  std::vector<std::vector<Insertion>> insertions_;
};

// The list with the insertions before the compute actions that they name.
StageActions Merged(const StageActions& actions, const std::vector<Insertion>& insertions) {
  StageActions merged;
  merged.reserve(actions.size() + insertions.size());
  size_t next = 0;
  size_t compute = 0;
  for (const Action& action : actions) {
    if (IsCompute(action.operation)) {
      for (; next < insertions.size() && insertions[next].before <= compute; ++next) {
        merged.push_back(insertions[next].action);
      }
      ++compute;
    }
    merged.push_back(action);
  }
  return merged;
}

}  // namespace

OffloadChoice FirstChunks(const ScheduleShape& shape, int chunks) {
  std::vector<bool> stage(static_cast<size_t>(shape.chunks) * shape.microbatches, false);
  std::fill_n(stage.begin(),
              static_cast<size_t>(std::min(chunks, shape.chunks)) * shape.microbatches, true);
  return OffloadChoice(shape.stages, stage);
}

std::string OffloadPlan::Diagnosis() const {
  const auto brief = std::ranges::count_if(kept, &KeptOnDevice::lives_too_briefly);
  return fmt::format(
      "{} activations offloaded; {} kept on the device: {} are needed again too soon, for {} the "
      "copies are too slow",
      offloaded, kept.size(), brief, static_cast<int64_t>(kept.size()) - brief);
}

absl::StatusOr<OffloadPlan> AddOffloads(const Schedule& schedule, const ScheduleCosts& costs,
                                        const OffloadChoice& choice, CopyStreams streams) {
  const ScheduleShape& shape = schedule.shape;
  SHOAL_ASSIGN_OR_RETURN(const ScheduleTimes times, SimulateSchedule(schedule, costs, streams));
  std::vector<StagePlan> plans = ComputeTimes(times);
  DelayForwardsAhead(shape, costs, plans);
  Placing placing(shape, costs, streams, std::move(plans));
  OffloadPlan result{.schedule = schedule};
  const int together = streams.paired ? 2 : 1;
  for (int stage = 0; stage < shape.stages; stage += together) {
    placing.Place(stage, std::min(together, shape.stages - stage), choice, result);
  }
  for (int stage = 0; stage < shape.stages; ++stage) {
    result.schedule.stages[stage] = Merged(schedule.stages[stage], placing.Insertions(stage));
  }
  return result;
}

}  // namespace shoal::plan

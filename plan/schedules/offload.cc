#include "plan/schedules/offload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include "common/status.h"
#include "fmt/format.h"
#include "plan/schedules/compute_times.h"
#include "plan/schedules/copy_plan.h"

namespace shoal::plan {
namespace {

using StageTimeline = std::vector<TimedAction>;

double Rounding(double time) { return 1e-9 * std::abs(time); }

struct Candidate {
  int stage = 0;
  int chunk = 0;
  int microbatch = 0;
  double forward_end = 0;
  double backward_begin = std::numeric_limits<double>::max();
  const ChunkCost* cost = nullptr;

  double lifespan() const { return backward_begin - forward_end; }
};

// An action to put before the compute action with this place in its stage's list.
struct Insertion {
  size_t before = 0;
  double time = 0;
  int rank = 0;  // at one time releases come first, but for one at the place of its own offload
  Action action;
};

size_t FirstEndingAfter(const StageTimeline& timeline, double time) {
  return std::ranges::upper_bound(timeline, time + Rounding(time), {}, &TimedAction::end) -
         timeline.begin();
}
size_t FirstBeginningFrom(const StageTimeline& timeline, double time) {
  return std::ranges::lower_bound(timeline, time - Rounding(time), {}, &TimedAction::begin) -
         timeline.begin();
}

// Where the four actions of one activation stand.
struct Places {
  Places(const StageTimeline& timeline, const ChunkCost& cost, const PlannedCopy& copy,
         double margin)
      // A copy is issued when the compute before it has ended; a release stands where nobody waits
      // for its offload.
      : offload(FirstEndingAfter(timeline, copy.offload_begin)),
        release(FirstBeginningFrom(timeline, copy.offload_begin + cost.offload + margin)),
        prepare(FirstEndingAfter(timeline, copy.reload_begin)) {}

  // Compute runs in between without that memory.
  bool Gains() const { return release < prepare; }

  size_t offload;
  size_t release;
  size_t prepare;
};

// One device, or two that share a switch.
class Placing {
 public:
  Placing(std::span<const StageTimeline> timelines, const ScheduleCosts& costs, CopyStreams streams,
          int first_stage, int stages)
      : timelines_(timelines), streams_(streams), first_stage_(first_stage) {
    for (int device = 0; device < stages; ++device) {
      int64_t held = 0;
      for (const TimedAction& timed : timelines[first_stage + device]) {
        const Action& action = timed.action;
        const int64_t bytes =
            costs.Of(first_stage + device, action.chunk, action.microbatch).activation_bytes;
        held += action.operation == Operation::kForward ? bytes : 0;
        held_[device].push_back(static_cast<double>(held));
        held -= IsBackwardForWeights(action.operation) ? bytes : 0;
      }
    }
  }

  void Choose(std::vector<Candidate> candidates, OffloadPlan& result) {
    for (const Candidate& candidate : candidates) {
      if (streams_.paired) {
        margin_ = std::max({margin_, candidate.cost->offload, candidate.cost->reload});
      }
    }
    const auto brief = std::ranges::stable_partition(candidates, [&](const Candidate& candidate) {
      const ChunkCost& cost = *candidate.cost;
      return cost.offload_bytes > 0 &&
             cost.offload + cost.reload + margin_ <= candidate.lifespan() &&
             PlacesOf(candidate, {.offload_begin = candidate.forward_end,
                                  .reload_begin = candidate.backward_begin - margin_ - cost.reload})
                 .Gains();
    });
    for (const Candidate& candidate : brief) {
      Keep(candidate, /*lives_too_briefly=*/true, result);
    }
    candidates.erase(brief.begin(), brief.end());
    std::ranges::stable_sort(candidates, std::greater<>(), &Candidate::lifespan);
    candidates_ = std::move(candidates);
    const size_t count = CountThatFits();
    const std::vector<PlannedCopy> copies = Plan(count);
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (i >= count || !copies[i].moved || !PlacesOf(candidates_[i], copies[i]).Gains()) {
        Keep(candidates_[i], /*lives_too_briefly=*/false, result);
      } else {
        Insert(candidates_[i], copies[i]);
        ++result.offloaded;
      }
    }
  }

  // In the order in which they stand in the list.
  std::vector<Insertion> Insertions(int stage) {
    std::vector<Insertion>& insertions = insertions_[stage - first_stage_];
    std::ranges::stable_sort(insertions, [](const Insertion& a, const Insertion& b) {
      return std::tuple(a.before, a.time, a.rank) < std::tuple(b.before, b.time, b.rank);
    });
    return std::move(insertions);
  }

 private:
  Places PlacesOf(const Candidate& candidate, const PlannedCopy& copy) const {
    return {timelines_[candidate.stage], *candidate.cost, copy, margin_};
  }

  std::vector<PlannedCopy> Plan(size_t count) const {
    std::vector<CopyJob> jobs;
    jobs.reserve(count);
    for (const Candidate& candidate : std::span(candidates_).first(count)) {
      jobs.push_back({.device = candidate.stage - first_stage_,
                      .ready = candidate.forward_end,
                      .due = candidate.backward_begin - margin_,
                      .offload = candidate.cost->offload,
                      .reload = candidate.cost->reload});
    }
    return PlanCopies(jobs, streams_);
  }

  // How many of the candidates, the longest lived first, are offloaded. The largest number with
  // which all are moved is searched for; of the numbers tried, that which leaves least on the
  // devices at once.
  size_t CountThatFits() const {
    size_t best = 0;
    double least = std::numeric_limits<double>::max();
    size_t fitting = 0;
    size_t too_many = candidates_.size() + 1;
    for (size_t count = candidates_.size(); fitting + 1 < too_many;
         count = fitting + (too_many - fitting) / 2) {
      const std::vector<PlannedCopy> copies = Plan(count);
      if (std::ranges::all_of(copies, &PlannedCopy::moved)) {
        fitting = count;
      } else {
        too_many = count;
      }
      if (count == candidates_.size() && fitting == count) {
        return count;
      }
      if (const double peaks = PeaksWith(copies); peaks < least) {
        least = peaks;
        best = count;
      }
    }
    return best;
  }

  // Bytes that the stages hold at the most, added up.
  double PeaksWith(std::span<const PlannedCopy> copies) const {
    std::array<std::vector<double>, 2> changes;  // before each place of the list
    for (size_t device = 0; device < changes.size(); ++device) {
      changes[device].resize(held_[device].size() + 1);
    }
    for (size_t i = 0; i < copies.size(); ++i) {
      const Candidate& candidate = candidates_[i];
      const Places places = PlacesOf(candidate, copies[i]);
      if (copies[i].moved && places.Gains()) {
        const auto bytes = static_cast<double>(candidate.cost->offload_bytes);
        changes[candidate.stage - first_stage_][places.release] -= bytes;
        changes[candidate.stage - first_stage_][places.prepare] += bytes;
      }
    }
    double peaks = 0;
    for (size_t device = 0; device < changes.size(); ++device) {
      double change = 0;
      double peak = 0;
      for (size_t place = 0; place < held_[device].size(); ++place) {
        change += changes[device][place];
        peak = std::max(peak, held_[device][place] + change);
      }
      peaks += peak;
    }
    return peaks;
  }

  void Insert(const Candidate& candidate, const PlannedCopy& copy) {
    const Places places = PlacesOf(candidate, copy);
    const auto [stage, chunk, microbatch] =
        std::tuple(candidate.stage, candidate.chunk, candidate.microbatch);
    std::vector<Insertion>& insertions = insertions_[stage - first_stage_];
    insertions.push_back(
        {places.offload, copy.offload_begin, 1, {Operation::kOffload, chunk, microbatch}});
    insertions.push_back({places.release,
                          copy.offload_begin + candidate.cost->offload + margin_,
                          places.release == places.offload ? 1 : 0,
                          {Operation::kRelease, chunk, microbatch}});
    insertions.push_back(
        {places.prepare, copy.reload_begin, 1, {Operation::kPrepare, chunk, microbatch}});
    insertions.push_back(
        {places.prepare, copy.reload_begin, 1, {Operation::kReload, chunk, microbatch}});
  }

  static void Keep(const Candidate& candidate, bool lives_too_briefly, OffloadPlan& result) {
    result.kept.push_back({.stage = candidate.stage,
                           .chunk = candidate.chunk,
                           .microbatch = candidate.microbatch,
                           .lives_too_briefly = lives_too_briefly});
  }

  std::span<const StageTimeline> timelines_;
  CopyStreams streams_;
  int first_stage_;
  // Behind a switch copies run in the order in which they are ready and not as planned: each may
  // come later by about one copy of the neighbour.
  double margin_ = 0;
  std::array<std::vector<double>, 2> held_;  // bytes by place of the list, with nothing offloaded
  std::vector<Candidate> candidates_;        // those that live longest first
  std::array<std::vector<Insertion>, 2> insertions_;
};

// Of a stage's activations those that are chosen.
void AddCandidates(int stage, const StageTimeline& timeline, const ScheduleShape& shape,
                   const ScheduleCosts& costs, const std::vector<bool>& chosen,
                   std::vector<Candidate>& candidates) {
  std::vector<Candidate> all(chosen.size());
  for (const auto& [action, begin, end] : timeline) {
    Candidate& candidate =
        all[static_cast<size_t>(action.chunk) * shape.microbatches + action.microbatch];
    if (action.operation == Operation::kForward) {
      candidate = {.stage = stage,
                   .chunk = action.chunk,
                   .microbatch = action.microbatch,
                   .forward_end = end,
                   .cost = &costs.Of(stage, action.chunk, action.microbatch)};
    } else if (IsBackwardForInput(action.operation)) {
      candidate.backward_begin = begin;
    }
  }
  for (size_t key = 0; key < chosen.size(); ++key) {
    if (chosen[key]) {
      candidates.push_back(all[key]);
    }
  }
}

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

OffloadChoice FirstChunks(const ScheduleShape& shape, double chunks) {
  std::vector<bool> stage;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const double share = std::clamp(chunks - chunk, 0.0, 1.0);
    for (int microbatch = 0; microbatch < shape.microbatches; ++microbatch) {
      stage.push_back(std::floor(share * (microbatch + 1)) > std::floor(share * microbatch));
    }
  }
  return OffloadChoice(shape.stages, stage);
}

std::string OffloadPlan::Diagnosis() const {
  const auto brief = std::ranges::count_if(kept, &KeptOnDevice::lives_too_briefly);
  return fmt::format(
      "{} activations offloaded; {} kept on the device: {} are needed again too soon, for {} the "
      "copies are too slow",
      offloaded, kept.size(), brief, static_cast<int64_t>(kept.size()) - brief);
}

OffloadPlan AddOffloads(const Schedule& schedule, const ScheduleCosts& costs,
                        std::span<const std::vector<TimedAction>> times,
                        const OffloadChoice& choice, CopyStreams streams) {
  const ScheduleShape& shape = schedule.shape;
  OffloadPlan result{.schedule = {.name = schedule.name, .shape = shape}};
  const int together = streams.paired ? 2 : 1;
  for (int first = 0; first < shape.stages; first += together) {
    const int end = std::min(first + together, shape.stages);
    std::vector<Candidate> candidates;
    for (int stage = first; stage < end; ++stage) {
      AddCandidates(stage, times[stage], shape, costs, choice[stage], candidates);
    }
    Placing placing(times, costs, streams, first, end - first);
    placing.Choose(std::move(candidates), result);
    for (int stage = first; stage < end; ++stage) {
      result.schedule.stages.push_back(Merged(schedule.stages[stage], placing.Insertions(stage)));
    }
  }
  return result;
}

absl::StatusOr<OffloadPlan> AddOffloads(const Schedule& schedule, const ScheduleCosts& costs,
                                        const OffloadChoice& choice, CopyStreams streams) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::vector<TimedAction>> times,
                         LatestComputeTimes(schedule, costs));
  return AddOffloads(schedule, costs, times, choice, streams);
}

}  // namespace shoal::plan

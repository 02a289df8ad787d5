#include "core/plan/schedule/builders/offload.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

#include "core/base/status.h"
#include "core/plan/schedule/builders/offload_placing.h"
#include "fmt/format.h"

namespace shoal::plan {
namespace {

// An action to insert before a compute action of the list.
struct Insertion {
  double time = 0;
  int rank = 0;  // at equal times releases come first, except one where its own offload is inserted
  Action action;
};

// The insertions of one stage, by the index of the compute action that they precede, in order.
class Insertions {
 public:
  Insertions(size_t places, const std::vector<PlacedOffload>& placed, int stage,
             const OffloadPlacing& placing)
      : begins_(places + 1) {
    Each(placed, stage, placing, [&](size_t place, const Insertion&) { ++begins_[place + 1]; });
    for (size_t place = 0; place < places; ++place) {
      begins_[place + 1] += begins_[place];
    }
    all_.resize(begins_.back());
    std::vector<size_t> next(begins_.begin(), begins_.end() - 1);
    Each(placed, stage, placing,
         [&](size_t place, const Insertion& insertion) { all_[next[place]++] = insertion; });
    for (size_t place = 0; place < places; ++place) {
      std::stable_sort(all_.begin() + static_cast<ptrdiff_t>(begins_[place]),
                       all_.begin() + static_cast<ptrdiff_t>(begins_[place + 1]),
                       [](const Insertion& a, const Insertion& b) {
                         return std::tuple(a.time, a.rank) < std::tuple(b.time, b.rank);
                       });
    }
  }

  std::span<const Insertion> Before(size_t place) const {
    return std::span(all_).subspan(begins_[place], begins_[place + 1] - begins_[place]);
  }
  size_t size() const { return all_.size(); }

 private:
  template <typename Take>
  static void Each(const std::vector<PlacedOffload>& all, int stage, const OffloadPlacing& placing,
                   const Take& take) {
    for (const PlacedOffload& placed : all) {
      const OffloadCandidate& of = placed.candidate;
      if (of.stage != stage) {
        continue;
      }
      take(placed.offload,
           {placed.copy.offload_begin, 1, {Operation::kOffload, of.chunk, of.microbatch}});
      take(placed.release, {placing.ReleaseTime(placed),
                            placed.release == placed.offload ? 1 : 0,
                            {Operation::kRelease, of.chunk, of.microbatch}});
      take(placed.prepare,
           {placed.copy.reload_begin, 1, {Operation::kPrepare, of.chunk, of.microbatch}});
      take(placed.prepare,
           {placed.copy.reload_begin, 1, {Operation::kReload, of.chunk, of.microbatch}});
    }
  }

  std::vector<size_t> begins_;
  std::vector<Insertion> all_;
};

// Adds the chosen ones of a stage's activations.
void AddCandidates(int stage, const ComputeTimes& times, const ScheduleShape& shape,
                   const ScheduleCosts& costs, const std::vector<bool>& chosen,
                   std::vector<OffloadCandidate>& candidates) {
  std::vector<OffloadCandidate> all(chosen.size());
  for (size_t i = 0; i < times.size(); ++i) {
    const Action& action = times.actions[i];
    OffloadCandidate& candidate =
        all[static_cast<size_t>(action.chunk) * shape.microbatches + action.microbatch];
    if (action.operation == Operation::kForward) {
      candidate = {.stage = stage,
                   .chunk = action.chunk,
                   .microbatch = action.microbatch,
                   .forward_place = i,
                   .forward_end = times.ends[i],
                   .cost = &costs.Of(stage, action.chunk, action.microbatch)};
    } else if (IsBackwardForInput(action.operation)) {
      candidate.backward_place = i;
      candidate.backward_begin = times.begins[i];
    }
  }
  for (size_t key = 0; key < chosen.size(); ++key) {
    if (chosen[key]) {
      candidates.push_back(all[key]);
    }
  }
}

// Returns the list with the insertions before their compute actions.
StageActions Merged(const StageActions& actions, const Insertions& insertions) {
  StageActions merged;
  merged.reserve(actions.size() + insertions.size());
  size_t compute = 0;
  for (const Action& action : actions) {
    if (IsCompute(action.operation)) {
      for (const Insertion& insertion : insertions.Before(compute)) {
        merged.push_back(insertion.action);
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
                        std::span<const ComputeTimes> times, const OffloadChoice& choice,
                        CopyStreams streams) {
  const ScheduleShape& shape = schedule.shape;
  OffloadPlan plan{.schedule = {.name = schedule.name, .shape = shape}};
  const int together = streams.paired ? 2 : 1;
  for (int first = 0; first < shape.stages; first += together) {
    const int end = std::min(first + together, shape.stages);
    std::vector<OffloadCandidate> candidates;
    for (int stage = first; stage < end; ++stage) {
      AddCandidates(stage, times[stage], shape, costs, choice[stage], candidates);
    }
    OffloadPlacing placing(times, costs, streams, first, end - first);
    const OffloadPlacing::Result result = placing.Choose(std::move(candidates));
    for (int stage = first; stage < end; ++stage) {
      plan.schedule.stages.push_back(Merged(
          schedule.stages[stage], Insertions(times[stage].size(), result.placed, stage, placing)));
    }
    plan.offloaded += static_cast<int64_t>(result.placed.size());
    for (const bool brief : {true, false}) {
      for (const OffloadCandidate& kept : brief ? result.brief : result.late) {
        plan.kept.push_back({kept.stage, kept.chunk, kept.microbatch, brief});
      }
    }
  }
  return plan;
}

absl::StatusOr<OffloadPlan> AddOffloads(const Schedule& schedule, const ScheduleCosts& costs,
                                        const OffloadChoice& choice, CopyStreams streams) {
  SHOAL_ASSIGN_OR_RETURN(const ScheduleTimes times,
                         SimulateSchedule(schedule, costs, streams, Spans::kCompute));
  return AddOffloads(schedule, costs, LatestComputeTimes(schedule, costs, times), choice, streams);
}

}  // namespace shoal::plan

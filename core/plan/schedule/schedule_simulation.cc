#include "core/plan/schedule/schedule_simulation.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "core/base/status.h"
#include "core/plan/schedule/busy_times.h"

namespace shoal::plan {
namespace {

constexpr double kNever = -1;

// One stage's walk through its list.
struct Walk {
  size_t next = 0;
  double clock = 0;  // the end of the compute so far
  bool began = false;
  int device_activations = 0;
  int64_t device_bytes = 0;
  int host_activations = 0;
  int64_t host_bytes = 0;
};

// What every action needs to know of its virtual stage.
struct Place {
  int virtual_stage = 0;
  bool receives_activation = false;  // waits for the forward of the previous virtual stage
  bool receives_gradient = false;
  bool sends_activation = false;  // to another stage
  bool sends_gradient = false;
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, const ScheduleCosts& costs, CopyStreams streams, Spans spans)
      : schedule_(schedule),
        shape_(schedule.shape),
        costs_(costs),
        streams_(streams),
        record_(spans),
        walks_(shape_.stages) {
    const auto results = static_cast<size_t>(shape_.VirtualStages()) * shape_.microbatches;
    activations_.assign(results, kNever);
    gradients_.assign(results, kNever);
    offloads_.assign(results, kNever);
    reloads_.assign(results, 0);
    const auto stages = static_cast<size_t>(shape_.stages);
    offload_free_.assign(stages, 0);
    reload_free_.assign(stages, 0);
    queue_free_.assign(stages * stages * 2, 0);
    switches_.resize(stages + 1);
    times_.stages.resize(stages);
    times_.spans.resize(record_ == Spans::kNone ? 0 : stages);
    waiters_.assign(results * 2, -1);
    for (int stage = 0; stage < shape_.stages; ++stage) {
      for (int chunk = 0; chunk < shape_.chunks; ++chunk) {
        const int here = shape_.VirtualStageOf(stage, chunk);
        places_.push_back({.virtual_stage = here,
                           .receives_activation = here > 0,
                           .receives_gradient = here + 1 < shape_.VirtualStages(),
                           .sends_activation = SendsActivation(shape_, here),
                           .sends_gradient = SendsGradient(shape_, here)});
      }
      if (record_ != Spans::kNone) {
        times_.spans[stage].reserve(schedule.stages[stage].size());
      }
    }
  }

  absl::StatusOr<ScheduleTimes> Run() {
    for (int stage = 0; stage < shape_.stages; ++stage) {
      ready_.emplace(0.0, stage);
    }
    while (!ready_.empty()) {
      const int stage = ready_.top().second;
      ready_.pop();
      // Copies of paired devices queue at their switch in the order of their issue, so the stage
      // that is behind goes first; without a switch the order of the walks does not matter.
      const double limit = streams_.paired && !ready_.empty() ? ready_.top().first
                                                              : std::numeric_limits<double>::max();
      if (Advance(stage, limit)) {
        ready_.emplace(walks_[stage].clock, stage);
      }
    }
    for (int stage = 0; stage < shape_.stages; ++stage) {
      if (walks_[stage].next < schedule_.stages[stage].size()) {
        return FailedPrecondition("{}: stage {} waits forever at action {}: {}", schedule_.name,
                                  stage, walks_[stage].next,
                                  NameOf(schedule_.stages[stage][walks_[stage].next]));
      }
    }
    return std::move(times_);
  }

 private:
  size_t KeyOf(int virtual_stage, int microbatch) const {
    return static_cast<size_t>(virtual_stage) * shape_.microbatches + microbatch;
  }

  const Place& PlaceOf(int stage, const Action& action) const {
    return places_[static_cast<size_t>(stage) * shape_.chunks + action.chunk];
  }

  // Walks until the clock passes `limit` (then returns true), or to the end or an action that waits
  // for another stage, which will wake this one.
  bool Advance(int stage, double limit) {
    Walk& walk = walks_[stage];
    const StageActions& actions = schedule_.stages[stage];
    for (; walk.next < actions.size(); ++walk.next) {
      if (walk.clock > limit) {
        return true;
      }
      const Action& action = actions[walk.next];
      if (IsCompute(action.operation)) {
        if (!Compute(stage, walk, action)) {
          return false;
        }
      } else {
        Execute(stage, walk, action);
      }
    }
    return false;
  }

  void Execute(int stage, Walk& walk, const Action& action) {
    const int here = PlaceOf(stage, action).virtual_stage;
    const size_t key = KeyOf(here, action.microbatch);
    const ChunkCost& cost = costs_.Of(stage, action.chunk, action.microbatch);
    switch (action.operation) {
      case Operation::kSendActivation:
        Send(stage, walk, action, cost.send_activation, here, here + 1);
        break;
      case Operation::kSendGradient:
        Send(stage, walk, action, cost.send_gradient, here, here - 1);
        break;
      case Operation::kOffload:
        offloads_[key] = Copy(stage, walk, action, Track::kOffload, cost.offload);
        HoldOnHost(stage, walk, 1, cost.offload_bytes);
        break;
      case Operation::kRelease:
        times_.stages[stage].waited_for_offloads += std::max(0.0, offloads_[key] - walk.clock);
        walk.clock = std::max(walk.clock, offloads_[key]);
        Hold(stage, walk, -1, -cost.offload_bytes);
        break;
      case Operation::kPrepare:
        Hold(stage, walk, 1, cost.offload_bytes);
        break;
      case Operation::kReload:
        reloads_[key] = Copy(stage, walk, action, Track::kReload, cost.reload);
        break;
      default:
        break;
    }
  }

  // Returns when the action's input is there, or kNever: then the stage is woken when it is.
  double InputOf(int stage, const Action& action, const Place& place) {
    size_t from = 0;
    size_t gradient = 0;
    if (action.operation == Operation::kForward && place.receives_activation) {
      from = KeyOf(place.virtual_stage - 1, action.microbatch);
    } else if (IsBackwardForInput(action.operation) && place.receives_gradient) {
      from = KeyOf(place.virtual_stage + 1, action.microbatch);
      gradient = 1;
    } else {
      return 0;
    }
    const double input = (gradient != 0 ? gradients_ : activations_)[from];
    if (input == kNever) {
      waiters_[from * 2 + gradient] = stage;
    }
    return input;
  }

  bool Compute(int stage, Walk& walk, const Action& action) {
    const Place& place = PlaceOf(stage, action);
    const double input = InputOf(stage, action, place);
    if (input == kNever) {
      return false;
    }
    const size_t key = KeyOf(place.virtual_stage, action.microbatch);
    const ChunkCost& cost = costs_.Of(stage, action.chunk, action.microbatch);
    StageTimes& times = times_.stages[stage];
    const double with_input = std::max(walk.clock, input);
    const double begin =
        IsBackwardForInput(action.operation) ? std::max(with_input, reloads_[key]) : with_input;
    if (!walk.began) {
      walk.began = true;
      times.begin = begin;
    } else {
      times.waited_for_neighbours += with_input - walk.clock;
      times.waited_for_reloads += begin - with_input;
    }
    const double seconds = SecondsOf(cost, action.operation);
    walk.clock = begin + seconds;
    times.compute += seconds;
    times.end = walk.clock;
    AddSpan(stage, {action, Track::kCompute, begin, walk.clock});
    Account(stage, walk, action, cost);
    // A result that stays on its stage is available at once; one that is sent arrives with its
    // message.
    if (action.operation == Operation::kForward && !place.sends_activation) {
      Arrive(activations_, key, 0, walk.clock);
    } else if (IsBackwardForInput(action.operation) && !place.sends_gradient) {
      Arrive(gradients_, key, 1, walk.clock);
    }
    return true;
  }

  // Accounts for the memory that a compute action takes and frees.
  void Account(int stage, Walk& walk, const Action& action, const ChunkCost& cost) {
    if (action.operation == Operation::kForward) {
      Hold(stage, walk, 1, cost.activation_bytes);
    } else if (action.operation == Operation::kBackwardInput) {
      Hold(stage, walk, 0, cost.gradient_bytes);
    } else if (action.operation == Operation::kBackward) {
      Hold(stage, walk, -1, -cost.activation_bytes);
    } else {
      Hold(stage, walk, -1, -cost.activation_bytes - cost.gradient_bytes);
    }
    if (IsBackwardForInput(action.operation) &&
        offloads_[KeyOf(PlaceOf(stage, action).virtual_stage, action.microbatch)] != kNever) {
      HoldOnHost(stage, walk, -1, -cost.offload_bytes);
    }
  }

  void Arrive(std::vector<double>& results, size_t key, size_t gradient, double time) {
    results[key] = time;
    if (const int waiter = waiters_[key * 2 + gradient]; waiter >= 0) {
      ready_.emplace(walks_[waiter].clock, waiter);
    }
  }

  void Send(int stage, const Walk& walk, const Action& action, double seconds, int here, int to) {
    const size_t gradient = to < here ? 1 : 0;
    const int receiver = shape_.At(to).stage;
    double& free =
        queue_free_[(static_cast<size_t>(stage) * shape_.stages + receiver) * 2 + gradient];
    const double begin = std::max(free, walk.clock);
    free = begin + seconds;
    if (seconds > 0) {
      AddSpan(stage, {action, Track::kSend, begin, free});
    }
    Arrive(gradient != 0 ? gradients_ : activations_, KeyOf(here, action.microbatch), gradient,
           free);
  }

  // Returns its end.
  double Copy(int stage, const Walk& walk, const Action& action, Track track, double seconds) {
    const bool offload = track == Track::kOffload;
    std::vector<double>& frees = offload ? offload_free_ : reload_free_;
    double begin = std::max(walk.clock, frees[stage]);
    if (!streams_.duplex) {
      begin = std::max(begin, (offload ? reload_free_ : offload_free_)[stage]);
    }
    if (streams_.paired) {
      begin =
          switches_[static_cast<size_t>(stage / 2) * 2 + (offload ? 0 : 1)].Take(begin, seconds);
    }
    frees[stage] = begin + seconds;
    AddSpan(stage, {action, track, begin, frees[stage]});
    return frees[stage];
  }

  void Hold(int stage, Walk& walk, int activations, int64_t bytes) {
    StageTimes& times = times_.stages[stage];
    times.peak_activations =
        std::max(times.peak_activations, walk.device_activations += activations);
    times.peak_device_bytes = std::max(times.peak_device_bytes, walk.device_bytes += bytes);
  }

  void HoldOnHost(int stage, Walk& walk, int activations, int64_t bytes) {
    StageTimes& times = times_.stages[stage];
    times.peak_host_activations =
        std::max(times.peak_host_activations, walk.host_activations += activations);
    times.peak_host_bytes = std::max(times.peak_host_bytes, walk.host_bytes += bytes);
  }

  void AddSpan(int stage, const ActionSpan& span) {
    if (record_ == Spans::kAll || (record_ == Spans::kCompute && span.track == Track::kCompute)) {
      times_.spans[stage].push_back(span);
    }
    times_.makespan = std::max(times_.makespan, span.end);
  }

  const Schedule& schedule_;
  const ScheduleShape& shape_;
  const ScheduleCosts& costs_;
  const CopyStreams streams_;
  const Spans record_;
  std::vector<Walk> walks_;
  std::vector<Place> places_;  // by stage and chunk
  // when the output of a forward arrives where it is used, by virtual stage and microbatch
  std::vector<double> activations_;
  std::vector<double> gradients_;  // same as above for the gradient of its input
  std::vector<double> offloads_;   // ends
  std::vector<double> reloads_;
  std::vector<double> offload_free_;  // by stage: when its copy stream is free
  std::vector<double> reload_free_;
  std::vector<BusyTimes> switches_;  // by pair and direction
  std::vector<double> queue_free_;   // by sender, receiver and kind
  std::vector<int> waiters_;         // the stage that waits for a result
  // The next stages to walk, those behind first.
  std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>>
      ready_;
  ScheduleTimes times_;
};

}  // namespace

double ScheduleTimes::Bubble() const {
  double bubble = 0;
  for (const StageTimes& stage : stages) {
    bubble = std::max(bubble, makespan - stage.compute);
  }
  return bubble;
}

double ScheduleTimes::BubbleShare() const { return makespan > 0 ? Bubble() / makespan : 0; }

int ScheduleTimes::PeakActivations() const {
  return stages.empty()
             ? 0
             : std::ranges::max(stages, {}, &StageTimes::peak_activations).peak_activations;
}

int64_t ScheduleTimes::PeakDeviceBytes() const {
  return stages.empty()
             ? 0
             : std::ranges::max(stages, {}, &StageTimes::peak_device_bytes).peak_device_bytes;
}

absl::StatusOr<ScheduleTimes> SimulateSchedule(const Schedule& schedule, const ScheduleCosts& costs,
                                               CopyStreams streams, Spans spans) {
  return Simulation(schedule, costs, streams, spans).Run();
}

}  // namespace shoal::plan

#include "plan/schedule_simulation.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "common/status.h"
#include "plan/busy_times.h"

namespace shoal::plan {
namespace {

constexpr double kNever = -1;

// One stage's walk through its list.
struct Walk {
  size_t next = 0;
  double clock = 0;  // the end of the compute so far
  int device_activations = 0;
  int64_t device_bytes = 0;
  int host_activations = 0;
  int64_t host_bytes = 0;
  bool began = false;
};

class Simulation {
 public:
  Simulation(const Schedule& schedule, const ScheduleCosts& costs, CopyStreams streams)
      : schedule_(schedule),
        shape_(schedule.shape),
        costs_(costs),
        streams_(streams),
        walks_(shape_.stages) {
    const auto results = static_cast<size_t>(shape_.VirtualStages()) * shape_.microbatches;
    activations_.assign(results, kNever);
    gradients_.assign(results, kNever);
    offloads_.assign(results, 0);
    reloads_.assign(results, kNever);
    const auto stages = static_cast<size_t>(shape_.stages);
    offload_free_.assign(stages, 0);
    reload_free_.assign(stages, 0);
    queue_free_.assign(stages * stages * 2, 0);
    switches_.resize(stages + 1);
    times_.stages.resize(stages);
    times_.spans.resize(stages);
    waiters_.assign(results * 2, -1);
  }

  absl::StatusOr<ScheduleTimes> Run() {
    for (int stage = 0; stage < shape_.stages; ++stage) {
      ready_.emplace(0.0, stage);
    }
    // Copies of paired devices meet at their switch in the order of their issue, so the stage that
    // is behind goes first.
    while (!ready_.empty()) {
      const int stage = ready_.top().second;
      ready_.pop();
      Walk& walk = walks_[stage];
      const StageActions& actions = schedule_.stages[stage];
      if (walk.next == actions.size()) {
        continue;
      }
      if (Execute(stage, walk, actions[walk.next])) {
        ++walk.next;
        ready_.emplace(walk.clock, stage);
      }
    }
    for (int stage = 0; stage < shape_.stages; ++stage) {
      if (walks_[stage].next < schedule_.stages[stage].size()) {
        return FailedPrecondition("{}: stage {} waits for ever at action {}: {}", schedule_.name,
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

  // False where the action waits for another stage, which will wake it.
  bool Execute(int stage, Walk& walk, const Action& action) {
    const int here = shape_.VirtualStageOf(stage, action.chunk);
    const size_t key = KeyOf(here, action.microbatch);
    if (IsCompute(action.operation)) {
      return Compute(stage, walk, action, here, key);
    }
    switch (action.operation) {
      case Operation::kSendActivation:
        Send(stage, walk, action, here, here + 1);
        break;
      case Operation::kSendGradient:
        Send(stage, walk, action, here, here - 1);
        break;
      case Operation::kOffload:
        HoldOnHost(stage, walk, 1, costs_.Of(stage, action.chunk, action.microbatch).offload_bytes);
        offloads_[key] = Copy(stage, walk, action, Lane::kOffload);
        break;
      case Operation::kRelease:
        times_.stages[stage].waited_for_offloads += std::max(0.0, offloads_[key] - walk.clock);
        walk.clock = std::max(walk.clock, offloads_[key]);
        Hold(stage, walk, -1, -costs_.Of(stage, action.chunk, action.microbatch).offload_bytes);
        break;
      case Operation::kPrepare:
        Hold(stage, walk, 1, costs_.Of(stage, action.chunk, action.microbatch).offload_bytes);
        break;
      case Operation::kReload:
        reloads_[key] = Copy(stage, walk, action, Lane::kReload);
        break;
      default:
        break;
    }
    return true;
  }

  bool Compute(int stage, Walk& walk, const Action& action, int here, size_t key) {
    double input = 0;
    if (action.operation == Operation::kForward && here > 0) {
      input = activations_[KeyOf(here - 1, action.microbatch)];
      if (input == kNever) {
        waiters_[KeyOf(here - 1, action.microbatch) * 2] = stage;
        return false;
      }
    } else if (IsBackwardForInput(action.operation) && here + 1 < shape_.VirtualStages()) {
      input = gradients_[KeyOf(here + 1, action.microbatch)];
      if (input == kNever) {
        waiters_[KeyOf(here + 1, action.microbatch) * 2 + 1] = stage;
        return false;
      }
    }
    StageTimes& times = times_.stages[stage];
    const double reload = IsBackwardForInput(action.operation) ? reloads_[key] : kNever;
    const double with_input = std::max(walk.clock, input);
    const double begin = std::max(with_input, reload);
    if (!walk.began) {
      walk.began = true;
      times.begin = begin;
    } else {
      times.waited_for_neighbours += with_input - walk.clock;
      times.waited_for_reloads += begin - with_input;
    }
    const double seconds = costs_.SecondsOf(stage, action);
    walk.clock = begin + seconds;
    times.compute += seconds;
    times.end = walk.clock;
    AddSpan(stage, {action, Lane::kCompute, begin, walk.clock});
    const ChunkCost& cost = costs_.Of(stage, action.chunk, action.microbatch);
    if (action.operation == Operation::kForward) {
      Hold(stage, walk, 1, cost.activation_bytes);
      Finish(activations_, key, 0,
             here + 1 < shape_.VirtualStages() && !SendsActivation(shape_, here), walk.clock);
    }
    if (IsBackwardForInput(action.operation)) {
      Finish(gradients_, key, 1, here > 0 && !SendsGradient(shape_, here), walk.clock);
    }
    if (reload != kNever) {
      HoldOnHost(stage, walk, -1, -cost.offload_bytes);
    }
    if (action.operation == Operation::kBackwardInput) {
      Hold(stage, walk, 0, cost.gradient_bytes);
    } else if (action.operation == Operation::kBackward) {
      Hold(stage, walk, -1, -cost.activation_bytes);
    } else if (action.operation == Operation::kBackwardWeights) {
      Hold(stage, walk, -1, -cost.activation_bytes - cost.gradient_bytes);
    }
    return true;
  }

  // A result that stays on its stage is there at once; one that is sent arrives with its message.
  void Finish(std::vector<double>& results, size_t key, size_t gradient, bool local, double time) {
    if (local) {
      Arrive(results, key, gradient, time);
    }
  }

  void Arrive(std::vector<double>& results, size_t key, size_t gradient, double time) {
    results[key] = time;
    if (const int waiter = waiters_[key * 2 + gradient]; waiter >= 0) {
      ready_.emplace(walks_[waiter].clock, waiter);
    }
  }

  void Send(int stage, const Walk& walk, const Action& action, int here, int to) {
    const size_t gradient = to < here ? 1 : 0;
    double& free =
        queue_free_[(static_cast<size_t>(stage) * shape_.stages + shape_.At(to).stage) * 2 +
                    gradient];
    const double begin = std::max(free, walk.clock);
    free = begin + costs_.SecondsOf(stage, action);
    if (free > begin) {
      AddSpan(stage, {action, Lane::kSend, begin, free});
    }
    Arrive(gradient != 0 ? gradients_ : activations_, KeyOf(here, action.microbatch), gradient,
           free);
  }

  double Copy(int stage, Walk& walk, const Action& action, Lane lane) {
    const bool offload = lane == Lane::kOffload;
    std::vector<double>& frees = offload ? offload_free_ : reload_free_;
    double begin = std::max(walk.clock, frees[stage]);
    if (!streams_.duplex) {
      begin = std::max(begin, (offload ? reload_free_ : offload_free_)[stage]);
    }
    const double seconds = costs_.SecondsOf(stage, action);
    if (streams_.paired) {
      begin =
          switches_[static_cast<size_t>(stage / 2) * 2 + (offload ? 0 : 1)].Take(begin, seconds);
    }
    const double end = begin + seconds;
    frees[stage] = end;
    AddSpan(stage, {action, lane, begin, end});
    return end;
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
    times_.spans[stage].push_back(span);
    times_.makespan = std::max(times_.makespan, span.end);
  }

  const Schedule& schedule_;
  const ScheduleShape& shape_;
  const ScheduleCosts& costs_;
  const CopyStreams streams_;
  std::vector<Walk> walks_;
  std::vector<double> activations_;  // when the output of a forward is where it is used, by virtual
                                     // stage and microbatch
  std::vector<double> gradients_;    // the same of the gradient of its input
  std::vector<double> offloads_;     // ends
  std::vector<double> reloads_;
  std::vector<double> offload_free_;  // by stage: when its copy stream is free
  std::vector<double> reload_free_;
  std::vector<BusyTimes> switches_;  // by pair and direction
  std::vector<double> queue_free_;   // by sender, receiver and kind
  std::vector<int> waiters_;         // the stage that waits for a result
  // The next stages to walk on, those behind first.
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
                                               CopyStreams streams) {
  return Simulation(schedule, costs, streams).Run();
}

}  // namespace shoal::plan

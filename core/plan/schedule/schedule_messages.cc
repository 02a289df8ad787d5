#include <algorithm>
#include <limits>
#include <vector>

#include "core/plan/schedule/schedule.h"

namespace shoal::plan {
namespace {

// The index of the compute action in its consumer's list before which a receive is posted.
struct Receive {
  Action action;
  size_t before = 0;
};

// Where each (chunk, microbatch) has its forward and its backward for the input in its stage's
// list.
struct Places {
  Places(const ScheduleShape& shape, const StageActions& actions)
      : microbatches(shape.microbatches),
        forward(static_cast<size_t>(shape.chunks) * shape.microbatches),
        backward(forward.size()) {
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const size_t key = static_cast<size_t>(action.chunk) * microbatches + action.microbatch;
      if (action.operation == Operation::kForward) {
        forward[key] = i;
      } else if (IsBackwardForInput(action.operation)) {
        backward[key] = i;
      }
    }
  }
  size_t Of(bool gradient, int chunk, int microbatch) const {
    return (gradient ? backward : forward)[static_cast<size_t>(chunk) * microbatches + microbatch];
  }

  int microbatches;
  std::vector<size_t> forward;
  std::vector<size_t> backward;
};

// The queues that end at each stage, [stage * 2 + gradient][sender], in the order of their sends.
using Queues = std::vector<std::vector<std::vector<Receive>>>;

Queues QueuesOf(const Schedule& schedule) {
  const ScheduleShape& shape = schedule.shape;
  std::vector<Places> places;
  for (const StageActions& actions : schedule.stages) {
    places.emplace_back(shape, actions);
  }
  Queues queues(static_cast<size_t>(shape.stages) * 2,
                std::vector<std::vector<Receive>>(shape.stages));
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (const Action& action : schedule.stages[stage]) {
      const int from = shape.VirtualStageOf(stage, action.chunk);
      const bool gradient = IsBackwardForInput(action.operation);
      if (!(gradient && SendsGradient(shape, from)) &&
          !(action.operation == Operation::kForward && SendsActivation(shape, from))) {
        continue;
      }
      const VirtualStage to = shape.At(gradient ? from - 1 : from + 1);
      const Operation operation =
          gradient ? Operation::kReceiveGradient : Operation::kReceiveActivation;
      queues[static_cast<size_t>(to.stage) * 2 + gradient][stage].push_back(
          {.action = {operation, to.chunk, action.microbatch},
           .before = places[to.stage].Of(gradient, to.chunk, action.microbatch)});
    }
  }
  return queues;
}

// Posts a receive no later than any later one in its queue, and one compute action ahead of the
// first of their consumers.
std::vector<Receive> Posted(std::vector<std::vector<Receive>> queues) {
  std::vector<Receive> receives;
  for (std::vector<Receive>& queue : queues) {
    size_t latest = std::numeric_limits<size_t>::max();
    for (size_t i = queue.size(); i-- > 0;) {
      latest = std::min(latest, queue[i].before);
      queue[i].before = latest > 0 ? latest - 1 : 0;
    }
    receives.insert(receives.end(), queue.begin(), queue.end());
  }
  return receives;
}

}  // namespace

void AddMessages(Schedule& schedule) {
  const ScheduleShape& shape = schedule.shape;
  Queues queues = QueuesOf(schedule);
  for (int stage = 0; stage < shape.stages; ++stage) {
    std::vector<Receive> receives = Posted(std::move(queues[static_cast<size_t>(stage) * 2]));
    for (const Receive& receive : Posted(std::move(queues[static_cast<size_t>(stage) * 2 + 1]))) {
      receives.push_back(receive);
    }
    std::ranges::stable_sort(receives, {}, &Receive::before);
    StageActions with_messages;
    with_messages.reserve(schedule.stages[stage].size() * 2);
    size_t next = 0;
    for (size_t i = 0; i < schedule.stages[stage].size(); ++i) {
      for (; next < receives.size() && receives[next].before == i; ++next) {
        with_messages.push_back(receives[next].action);
      }
      const Action& action = schedule.stages[stage][i];
      with_messages.push_back(action);
      const int virtual_stage = shape.VirtualStageOf(stage, action.chunk);
      if (action.operation == Operation::kForward && SendsActivation(shape, virtual_stage)) {
        with_messages.push_back({Operation::kSendActivation, action.chunk, action.microbatch});
      } else if (IsBackwardForInput(action.operation) && SendsGradient(shape, virtual_stage)) {
        with_messages.push_back({Operation::kSendGradient, action.chunk, action.microbatch});
      }
    }
    schedule.stages[stage] = std::move(with_messages);
  }
}

}  // namespace shoal::plan

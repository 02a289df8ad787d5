#include "core/plan/schedule/schedule_queues.h"

#include <algorithm>
#include <set>

namespace shoal::plan {
namespace {

// Returns the index of the queue (from, to, gradients).
size_t QueueNumber(const ScheduleShape& shape, int from, int to, bool gradients) {
  return (static_cast<size_t>(from) * shape.stages + to) * 2 + (gradients ? 1 : 0);
}

// Returns the index of the queue of a stage's send or receive.
size_t KeyOf(const ScheduleShape& shape, int stage, const Action& action) {
  const bool gradient = IsGradientMessage(action.operation);
  const int here = shape.VirtualStageOf(stage, action.chunk);
  const bool send = IsSend(action.operation);
  const int other = shape.At(here + (gradient == send ? -1 : 1)).stage;
  return send ? QueueNumber(shape, stage, other, gradient)
              : QueueNumber(shape, other, stage, gradient);
}

// Walks all stages for as long as any can proceed.
class BoundedWalk {
 public:
  BoundedWalk(const Schedule& schedule, int send_buffers)
      : schedule_(schedule),
        shape_(schedule.shape),
        send_buffers_(send_buffers),
        forwards_(static_cast<size_t>(shape_.VirtualStages()) * shape_.microbatches),
        backwards_(forwards_.size()),
        next_(static_cast<size_t>(shape_.stages)),
        under_way_(next_.size() * next_.size() * 2) {}

  bool Ends() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < shape_.stages; ++stage) {
        const StageActions& actions = schedule_.stages[stage];
        for (; next_[stage] < actions.size() && Runs(stage, actions[next_[stage]]);
             ++next_[stage]) {
          moved = true;
        }
      }
    }
    for (int stage = 0; stage < shape_.stages; ++stage) {
      if (next_[stage] < schedule_.stages[stage].size()) {
        return false;
      }
    }
    return true;
  }

 private:
  size_t KeyOfResult(int virtual_stage, int microbatch) const {
    return static_cast<size_t>(virtual_stage) * shape_.microbatches + microbatch;
  }

  bool Runs(int stage, const Action& action) {
    if (IsReceive(action.operation)) {
      ++under_way_[KeyOf(shape_, stage, action)].posted;
      return true;
    }
    if (!IsCompute(action.operation) || action.operation == Operation::kBackwardWeights) {
      return true;
    }
    const int here = shape_.VirtualStageOf(stage, action.chunk);
    const bool forward = action.operation == Operation::kForward;
    const bool outer = forward ? here == 0 : here + 1 == shape_.VirtualStages();
    if (!outer &&
        !(forward ? forwards_
                  : backwards_)[KeyOfResult(here + (forward ? -1 : 1), action.microbatch)]) {
      return false;
    }
    if (const Action made = MadeBy(shape_, stage, action); IsSend(made.operation)) {
      UnderWay& queue = under_way_[KeyOf(shape_, stage, made)];
      if (std::max(0, queue.made - queue.posted) >= send_buffers_) {
        return false;
      }
      ++queue.made;
    }
    (forward ? forwards_ : backwards_)[KeyOfResult(here, action.microbatch)] = true;
    return true;
  }

  struct UnderWay {
    int made = 0;
    int posted = 0;
  };

  const Schedule& schedule_;
  const ScheduleShape& shape_;
  const int send_buffers_;
  std::vector<bool> forwards_;
  std::vector<bool> backwards_;
  std::vector<size_t> next_;
  std::vector<UnderWay> under_way_;  // by QueueNumber
};

}  // namespace

Action MadeBy(const ScheduleShape& shape, int stage, const Action& action) {
  const int here = shape.VirtualStageOf(stage, action.chunk);
  if (action.operation == Operation::kForward && SendsActivation(shape, here)) {
    return {Operation::kSendActivation, action.chunk, action.microbatch};
  }
  if (IsBackwardForInput(action.operation) && SendsGradient(shape, here)) {
    return {Operation::kSendGradient, action.chunk, action.microbatch};
  }
  return action;
}

Action UsedBy(const ScheduleShape& shape, int stage, const Action& action) {
  const int here = shape.VirtualStageOf(stage, action.chunk);
  if (action.operation == Operation::kForward && here > 0 && SendsActivation(shape, here - 1)) {
    return {Operation::kReceiveActivation, action.chunk, action.microbatch};
  }
  if (IsBackwardForInput(action.operation) && SendsActivation(shape, here)) {
    return {Operation::kReceiveGradient, action.chunk, action.microbatch};
  }
  return action;
}

bool ProgressesWith(const Schedule& schedule, int send_buffers) {
  return BoundedWalk(schedule, send_buffers).Ends();
}

std::vector<int> Neighbours(const ScheduleShape& shape, int stage) {
  std::set<int> neighbours;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    const int here = shape.VirtualStageOf(stage, chunk);
    for (const int other : {here - 1, here + 1}) {
      if (other >= 0 && other < shape.VirtualStages() && shape.At(other).stage != stage) {
        neighbours.insert(shape.At(other).stage);
      }
    }
  }
  return {neighbours.begin(), neighbours.end()};
}

std::vector<MessageQueue> MessageQueues(const Schedule& schedule, int send_buffers) {
  const ScheduleShape& shape = schedule.shape;
  std::vector<MessageQueue> queues(static_cast<size_t>(shape.stages) * shape.stages * 2);
  for (int from = 0; from < shape.stages; ++from) {
    for (int to = 0; to < shape.stages; ++to) {
      for (const bool gradients : {false, true}) {
        queues[QueueNumber(shape, from, to, gradients)] = {
            .from = from, .to = to, .gradients = gradients};
      }
    }
  }
  std::vector<int> posted(queues.size());
  for (int stage = 0; stage < shape.stages; ++stage) {
    for (const Action& action : schedule.stages[stage]) {
      if (IsReceive(action.operation)) {
        const size_t key = KeyOf(shape, stage, action);
        ++queues[key].messages;
        queues[key].slots = std::max(queues[key].slots, ++posted[key]);
      } else if (const Action used = UsedBy(shape, stage, action); IsReceive(used.operation)) {
        --posted[KeyOf(shape, stage, used)];
      }
    }
  }
  std::erase_if(queues, [](const MessageQueue& queue) { return queue.messages == 0; });
  while (!ProgressesWith(schedule, send_buffers)) {
    send_buffers *= 2;  // as many as there are messages always suffice
  }
  for (MessageQueue& queue : queues) {
    queue.send_buffers = std::min(send_buffers, queue.messages);
  }
  return queues;
}

}  // namespace shoal::plan

#include "core/plan/schedule/schedule_check.h"

#include <map>
#include <tuple>
#include <vector>

#include "core/base/status.h"

namespace shoal::plan {
namespace {

// What has been done with a (chunk, microbatch) on its stage.
enum class Progress : uint8_t {
  kNone,
  kForward,
  kOffloaded,
  kReleased,
  kPrepared,
  kReloaded,
  kBackwardInput,
  kDone
};

bool MayFollow(Progress progress, Operation operation, bool evaluates) {
  if (evaluates) {
    return operation == Operation::kForward   ? progress == Progress::kNone
           : operation == Operation::kRelease ? progress == Progress::kForward
                                              : IsSend(operation) || IsReceive(operation);
  }
  switch (operation) {
    case Operation::kForward:
      return progress == Progress::kNone;
    case Operation::kOffload:
      return progress == Progress::kForward;
    case Operation::kRelease:
      return progress == Progress::kOffloaded;
    case Operation::kPrepare:
      return progress == Progress::kReleased;
    case Operation::kReload:
      return progress == Progress::kPrepared;
    case Operation::kBackwardInput:
    case Operation::kBackward:
      return progress == Progress::kForward || progress == Progress::kReloaded;
    case Operation::kBackwardWeights:
      return progress == Progress::kBackwardInput;
    default:
      return true;
  }
}

Progress After(Progress progress, Operation operation) {
  switch (operation) {
    case Operation::kForward:
      return Progress::kForward;
    case Operation::kOffload:
      return Progress::kOffloaded;
    case Operation::kRelease:
      return Progress::kReleased;
    case Operation::kPrepare:
      return Progress::kPrepared;
    case Operation::kReload:
      return Progress::kReloaded;
    case Operation::kBackwardInput:
      return Progress::kBackwardInput;
    case Operation::kBackwardWeights:
    case Operation::kBackward:
      return Progress::kDone;
    default:
      return progress;
  }
}

size_t KeyOf(const ScheduleShape& shape, int chunk, int microbatch) {
  return static_cast<size_t>(chunk) * shape.microbatches + microbatch;
}

absl::Status CheckStage(const Schedule& schedule, int stage) {
  const ScheduleShape& shape = schedule.shape;
  std::vector<Progress> progress(static_cast<size_t>(shape.chunks) * shape.microbatches,
                                 Progress::kNone);
  const StageActions& actions = schedule.stages[stage];
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (action.chunk < 0 || action.chunk >= shape.chunks || action.microbatch < 0 ||
        action.microbatch >= shape.microbatches) {
      return InvalidArgument(
          "{}: stage {} action {}: {} is outside of {} chunks and {} microbatches", schedule.name,
          stage, i, NameOf(action), shape.chunks, shape.microbatches);
    }
    Progress& of = progress[KeyOf(shape, action.chunk, action.microbatch)];
    if (!MayFollow(of, action.operation, schedule.evaluates)) {
      return InvalidArgument("{}: stage {} action {}: {} comes twice, too early or too late",
                             schedule.name, stage, i, NameOf(action));
    }
    of = After(of, action.operation);
  }
  for (size_t key = 0; key < progress.size(); ++key) {
    if (progress[key] != (schedule.evaluates ? Progress::kReleased : Progress::kDone)) {
      return InvalidArgument("{}: stage {} never ends the {} of chunk {} microbatch {}",
                             schedule.name, stage, schedule.evaluates ? "forward" : "backward",
                             key / shape.microbatches, key % shape.microbatches);
    }
  }
  return absl::OkStatus();
}

// What a message needs of its own stage: a send its producer before it, a receive its consumer
// after it. 0: not there yet, 1: the producer has run or the receive is posted, 2: sent or
// consumed.
struct MessageStates {
  explicit MessageStates(const ScheduleShape& shape)
      : shape(shape),
        states(kOperations,
               std::vector<uint8_t>(static_cast<size_t>(shape.chunks) * shape.microbatches)) {}

  uint8_t& Of(Operation message, const Action& action) {
    return states[static_cast<size_t>(message)][KeyOf(shape, action.chunk, action.microbatch)];
  }

  // False if the action is out of order.
  bool Take(const Action& action, int virtual_stage) {
    if (IsSend(action.operation)) {
      return Of(action.operation, action)++ == 1;
    }
    if (IsReceive(action.operation)) {
      const int from =
          action.operation == Operation::kReceiveActivation ? virtual_stage - 1 : virtual_stage;
      return from >= 0 && SendsActivation(shape, from) && Of(action.operation, action)++ == 0;
    }
    if (action.operation == Operation::kForward) {
      if (SendsActivation(shape, virtual_stage)) {
        Of(Operation::kSendActivation, action) = 1;
      }
      return virtual_stage == 0 || !SendsActivation(shape, virtual_stage - 1) ||
             Of(Operation::kReceiveActivation, action)++ == 1;
    }
    if (IsBackwardForInput(action.operation)) {
      if (SendsGradient(shape, virtual_stage)) {
        Of(Operation::kSendGradient, action) = 1;
      }
      return !SendsActivation(shape, virtual_stage) ||
             Of(Operation::kReceiveGradient, action)++ == 1;
    }
    return true;
  }

  ScheduleShape shape;
  std::vector<std::vector<uint8_t>> states;
};

absl::Status CheckMessagesOf(const Schedule& schedule, int stage) {
  MessageStates states(schedule.shape);
  const StageActions& actions = schedule.stages[stage];
  for (size_t i = 0; i < actions.size(); ++i) {
    if (!states.Take(actions[i], schedule.shape.VirtualStageOf(stage, actions[i].chunk))) {
      return InvalidArgument(
          "{}: stage {} action {}: {}: a send stands once behind its producer, a receive once "
          "ahead of "
          "its consumer, both just between different stages",
          schedule.name, stage, i, NameOf(actions[i]));
    }
  }
  for (const Operation send : {Operation::kSendActivation, Operation::kSendGradient}) {
    for (int chunk = 0; chunk < schedule.shape.chunks; ++chunk) {
      for (int microbatch = 0; microbatch < schedule.shape.microbatches; ++microbatch) {
        if (states.Of(send, {send, chunk, microbatch}) == 1) {
          return InvalidArgument("{}: stage {} lacks {}", schedule.name, stage,
                                 NameOf({send, chunk, microbatch}));
        }
      }
    }
  }
  return absl::OkStatus();
}

// Sends and receives of a queue, by what the receiver does with them.
using QueueKey = std::tuple<int, int, bool>;  // from, to, gradients
struct QueueOrder {
  std::vector<Action> sent;
  std::vector<Action> received;
};

}  // namespace

absl::Status CheckShape(const Schedule& schedule) {
  const ScheduleShape& shape = schedule.shape;
  if (shape.stages < 1 || shape.chunks < 1 || shape.microbatches < 1) {
    return InvalidArgument(
        "{}: {} stages, {} chunks, {} microbatches: at least one of each is needed", schedule.name,
        shape.stages, shape.chunks, shape.microbatches);
  }
  if (schedule.stages.size() != static_cast<size_t>(shape.stages)) {
    return InvalidArgument("{}: lists for {} stages where there are {}", schedule.name,
                           schedule.stages.size(), shape.stages);
  }
  return absl::OkStatus();
}

absl::Status CheckStages(const Schedule& schedule) {
  for (int stage = 0; stage < schedule.shape.stages; ++stage) {
    SHOAL_RETURN_IF_ERROR(CheckStage(schedule, stage));
  }
  return absl::OkStatus();
}

absl::Status CheckMessages(const Schedule& schedule) {
  const ScheduleShape& shape = schedule.shape;
  std::map<QueueKey, QueueOrder> queues;
  for (int stage = 0; stage < shape.stages; ++stage) {
    SHOAL_RETURN_IF_ERROR(CheckMessagesOf(schedule, stage));
    for (const Action& action : schedule.stages[stage]) {
      const int here = shape.VirtualStageOf(stage, action.chunk);
      const bool gradient = action.operation == Operation::kSendGradient ||
                            action.operation == Operation::kReceiveGradient;
      if (IsSend(action.operation)) {
        const VirtualStage to = shape.At(gradient ? here - 1 : here + 1);
        queues[{stage, to.stage, gradient}].sent.push_back(
            {Operation::kForward, to.chunk, action.microbatch});
      } else if (IsReceive(action.operation)) {
        const VirtualStage from = shape.At(gradient ? here + 1 : here - 1);
        queues[{from.stage, stage, gradient}].received.push_back(
            {Operation::kForward, action.chunk, action.microbatch});
      }
    }
  }
  for (const auto& [key, queue] : queues) {
    if (queue.sent != queue.received) {
      return InvalidArgument(
          "{}: stage {} does not receive the {} of stage {} in the order in which they are sent",
          schedule.name, std::get<1>(key), std::get<2>(key) ? "gradients" : "activations",
          std::get<0>(key));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckProgress(const Schedule& schedule) {
  const ScheduleShape& shape = schedule.shape;
  const auto results = static_cast<size_t>(shape.VirtualStages()) * shape.microbatches;
  std::vector<bool> forwards(results);
  std::vector<bool> backwards(results);
  const auto key = [&](int virtual_stage, int microbatch) {
    return static_cast<size_t>(virtual_stage) * shape.microbatches + microbatch;
  };
  // Whether the action can run now; if so, records its result.
  const auto runs = [&](int stage, const Action& action) {
    const int here = shape.VirtualStageOf(stage, action.chunk);
    if (action.operation == Operation::kForward) {
      if (here > 0 && !forwards[key(here - 1, action.microbatch)]) {
        return false;
      }
      forwards[key(here, action.microbatch)] = true;
    } else if (IsBackwardForInput(action.operation)) {
      if (!forwards[key(here, action.microbatch)] ||
          (here + 1 < shape.VirtualStages() && !backwards[key(here + 1, action.microbatch)])) {
        return false;
      }
      backwards[key(here, action.microbatch)] = true;
    }
    return true;
  };
  std::vector<size_t> next(shape.stages);
  for (bool moved = true; moved;) {
    moved = false;
    for (int stage = 0; stage < shape.stages; ++stage) {
      const StageActions& actions = schedule.stages[stage];
      for (; next[stage] < actions.size() && runs(stage, actions[next[stage]]); ++next[stage]) {
        moved = true;
      }
    }
  }
  for (int stage = 0; stage < shape.stages; ++stage) {
    if (next[stage] < schedule.stages[stage].size()) {
      return FailedPrecondition("{}: stage {} waits forever at action {}: {}", schedule.name, stage,
                                next[stage], NameOf(schedule.stages[stage][next[stage]]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSchedule(const Schedule& schedule) {
  SHOAL_RETURN_IF_ERROR(CheckShape(schedule));
  SHOAL_RETURN_IF_ERROR(CheckStages(schedule));
  SHOAL_RETURN_IF_ERROR(CheckMessages(schedule));
  return CheckProgress(schedule);
}

}  // namespace shoal::plan

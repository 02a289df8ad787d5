#include "core/plan/schedule/schedule.h"

#include <algorithm>
#include <array>

#include "fmt/format.h"

namespace shoal::plan {

std::string_view NameOf(Operation operation) {
  static constexpr std::array<std::string_view, kOperations> kNames = {
      "forward",       "backward_input",   "backward_weights",
      "backward",      "send_activation",  "receive_activation",
      "send_gradient", "receive_gradient", "offload",
      "release",       "prepare",          "reload"};
  return kNames.at(static_cast<size_t>(operation));
}

bool IsCompute(Operation operation) { return operation <= Operation::kBackward; }

bool IsSend(Operation operation) {
  return operation == Operation::kSendActivation || operation == Operation::kSendGradient;
}

bool IsReceive(Operation operation) {
  return operation == Operation::kReceiveActivation || operation == Operation::kReceiveGradient;
}

bool IsBackwardForInput(Operation operation) {
  return operation == Operation::kBackwardInput || operation == Operation::kBackward;
}

bool IsBackwardForWeights(Operation operation) {
  return operation == Operation::kBackwardWeights || operation == Operation::kBackward;
}

std::string NameOf(const Action& action) {
  return fmt::format("{} chunk {} microbatch {}", NameOf(action.operation), action.chunk,
                     action.microbatch);
}

int ScheduleShape::VirtualStageOf(int stage, int chunk) const {
  const bool back = placement == Placement::kVShaped && chunk % 2 == 1;
  return chunk * stages + (back ? stages - 1 - stage : stage);
}

VirtualStage ScheduleShape::At(int virtual_stage) const {
  const int chunk = virtual_stage / stages;
  const int place = virtual_stage % stages;
  const bool back = placement == Placement::kVShaped && chunk % 2 == 1;
  return {.stage = back ? stages - 1 - place : place, .chunk = chunk};
}

bool SendsActivation(const ScheduleShape& shape, int virtual_stage) {
  return virtual_stage + 1 < shape.VirtualStages() &&
         shape.At(virtual_stage).stage != shape.At(virtual_stage + 1).stage;
}

bool SendsGradient(const ScheduleShape& shape, int virtual_stage) {
  return virtual_stage > 0 && SendsActivation(shape, virtual_stage - 1);
}

int64_t CountSends(const Schedule& schedule) {
  int64_t sends = 0;
  for (const StageActions& actions : schedule.stages) {
    sends += std::ranges::count_if(actions,
                                   [](const Action& action) { return IsSend(action.operation); });
  }
  return sends;
}

int PeakActivations(const StageActions& actions) {
  int held = 0;
  int peak = 0;
  for (const Action& action : actions) {
    if (action.operation == Operation::kForward || action.operation == Operation::kPrepare) {
      peak = std::max(peak, ++held);
    } else if (IsBackwardForWeights(action.operation) || action.operation == Operation::kRelease) {
      --held;
    }
  }
  return peak;
}

}  // namespace shoal::plan

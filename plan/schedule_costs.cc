#include "plan/schedule_costs.h"

namespace shoal::plan {

ScheduleCosts::ScheduleCosts(const ScheduleShape& shape, const ChunkCost& cost)
    : shape_(shape),
      costs_(static_cast<size_t>(shape.VirtualStages()) * shape.microbatches, cost) {}

double ScheduleCosts::SecondsOf(int stage, const Action& action) const {
  const ChunkCost& cost = Of(stage, action.chunk, action.microbatch);
  switch (action.operation) {
    case Operation::kForward:
      return cost.forward;
    case Operation::kBackwardInput:
      return cost.backward_input;
    case Operation::kBackwardWeights:
      return cost.backward_weights;
    case Operation::kBackward:
      return cost.backward_input + cost.backward_weights;
    case Operation::kSendActivation:
      return cost.send_activation;
    case Operation::kSendGradient:
      return cost.send_gradient;
    case Operation::kOffload:
      return cost.offload;
    case Operation::kReload:
      return cost.reload;
    default:
      return 0;
  }
}

}  // namespace shoal::plan

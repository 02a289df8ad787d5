// What a schedule's actions cost: seconds (or any unit of time) and bytes for each chunk of each
// stage and each microbatch, measured by a probe or given. Input of the simulation and of the
// placement of transfers.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

struct ChunkCost {
  double forward = 1;
  double backward_input = 1;
  double backward_weights = 1;   // a joined backward takes the sum of both
  double offload = 0;            // device to host
  double reload = 0;             // host to device
  double send_activation = 0;    // to the stage of the next virtual stage
  double send_gradient = 0;      // to the stage of the previous virtual stage
  int64_t activation_bytes = 1;  // held on the device from forward to backward
  int64_t offload_bytes = 1;     // the part of them that an offload moves
  // held on the device from the start of B to the end of W, if the two are split
  int64_t gradient_bytes = 0;

  double Compute() const { return forward + backward_input + backward_weights; }
};

// Returns the time of a compute action, a copy or a send; 0 for other actions.
inline double SecondsOf(const ChunkCost& cost, Operation operation) {
  switch (operation) {
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

class ScheduleCosts {
 public:
  // The same cost everywhere.
  ScheduleCosts(const ScheduleShape& shape, const ChunkCost& cost);

  const ChunkCost& Of(int stage, int chunk, int microbatch) const {
    return costs_[KeyOf(stage, chunk, microbatch)];
  }
  ChunkCost& Of(int stage, int chunk, int microbatch) {
    return costs_[KeyOf(stage, chunk, microbatch)];
  }

 private:
  size_t KeyOf(int stage, int chunk, int microbatch) const {
    return (static_cast<size_t>(stage) * shape_.chunks + chunk) * shape_.microbatches + microbatch;
  }

  ScheduleShape shape_;
  std::vector<ChunkCost> costs_;
};

}  // namespace shoal::plan

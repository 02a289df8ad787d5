// Training steps with weights, gradients and the optimizer's state resident on the device: forward
// and backward of one microbatch, then AdamW.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/gpu_check/base/parts.h"
#include "bench/gpu_check/parts/profiled_ops.h"
#include "core/model/model_spec.h"

namespace shoal::bench {

// How a case fits device memory.
struct TrainPlan {
  plan::Recompute recompute = plan::Recompute::kNone;
  bool shared_state = false;  // resident_optimizer.h
  int64_t bytes = 0;          // weights, gradients, state and the microbatch
};

// Returns the first plan that fits `budget_bytes` (0: any), starting from what the case asks for:
// all of the optimizer's state before a shared one, less recompute before more; no state if
// `optimizer` is false. ResourceExhausted, with what the case as it is would take.
absl::StatusOr<TrainPlan> PlanTraining(const TrainCase& c, const plan::ModelSpec& spec,
                                       bool optimizer, int64_t budget_bytes);

struct ResidentTraining {
  TrainPlan plan;
  // Medians. A whole step is a microbatch and AdamW; 0 without AdamW.
  double microbatch_seconds = 0;
  double step_seconds = 0;
  double optimizer_seconds = 0;
  int steps = 0;    // measured
  double loss = 0;  // per target, of the last step
  int64_t peak_bytes = 0;
  std::string attention_backward;    // by which kernels; empty if unknown
  std::vector<OpProfile> operators;  // of one more microbatch; empty if not requested
};

// Weights are random in bf16, gradients and state fp32. ResourceExhausted if it does not fit.
absl::StatusOr<ResidentTraining> TrainResident(PartRun& run, const TrainCase& c, bool profile);

}  // namespace shoal::bench

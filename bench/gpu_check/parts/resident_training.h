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

// How a case fits into the device's memory.
struct TrainPlan {
  plan::Recompute recompute = plan::Recompute::kNone;
  bool shared_state = false;  // resident_optimizer.h
  int64_t bytes = 0;          // weights, gradients, state and the microbatch
};

// The first that fits into `budget_bytes` (0: any), from what the case asks for upwards: all of the
// optimizer's state rather than a shared one, less recompute rather than more; without a state
// where `optimizer` is false. ResourceExhausted, with what the case as it is would take.
absl::StatusOr<TrainPlan> PlanTraining(const TrainCase& c, const plan::ModelSpec& spec,
                                       bool optimizer, int64_t budget_bytes);

struct ResidentTraining {
  TrainPlan plan;
  // Medians. A whole step is a microbatch and AdamW; 0 without.
  double microbatch_seconds = 0;
  double step_seconds = 0;
  double optimizer_seconds = 0;
  int steps = 0;    // that counted
  double loss = 0;  // a target's, of the last one
  int64_t peak_bytes = 0;
  std::string attention_backward;    // by whose kernels; empty where nobody knows
  std::vector<OpProfile> operators;  // of one more microbatch; empty where not asked for
};

// Random weights in bf16, gradients and state in fp32. ResourceExhausted where it does not fit.
absl::StatusOr<ResidentTraining> TrainResident(PartRun& run, const TrainCase& c, bool profile);

}  // namespace shoal::bench

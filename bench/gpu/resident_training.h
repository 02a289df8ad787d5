// Forward and backward of a microbatch with weights and gradients resident on the device.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "bench/gpu/parts.h"
#include "plan/model_spec.h"

namespace shoal::bench {

struct ResidentTraining {
  double seconds = 0;  // of a microbatch, the median
  int steps = 0;       // that counted
  double loss = 0;     // a target's, of the last one
  int64_t peak_bytes = 0;
};

// A microbatch of one sequence, random weights in bf16, gradients in fp32. ResourceExhausted where
// it does not fit.
absl::StatusOr<ResidentTraining> TrainResident(PartRun& run, const plan::ModelSpec& spec,
                                               int64_t tokens);

}  // namespace shoal::bench

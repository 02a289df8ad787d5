// k, PipeOffload's measure of what offloading costs (arXiv 2503.01328): the time to move a
// layer's activations of a microbatch to the host and, after that, back, over the time to compute
// its forward and backward. With k <= 1 everything can be offloaded while the device computes, with
// k <= 2 half of it; a stage of v chunks can offload floor(v / k) of them. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/dtype.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "core/plan/pipeline/pace_costs.h"
#include "core/plan/schedule/schedule_costs.h"

namespace shoal::plan {

// The paper's layer: GPT's with a hidden size h, an MLP of 4 h and dropout, bf16, attention counted
// in full. Bytes for each token and hidden element: 34 kept whole; without norms' outputs, GeLU's
// output and dropout masks 16 + 4 r, with r = kv_heads / heads (the paper takes r = 1).
double GptLayerBytes(Recompute recompute, double kv_share = 1);  // none or light

struct GptMachine {
  double flops = 220e12;                // an A100, as the paper has it
  double copy_bytes_per_second = 15e9;  // either way
};
// Light recompute: 10 / (3 (6 h + s)) x flops / copy rate, for r = 1.
double GptOffloadRatio(double hidden, double sequence, const GptMachine& machine = {},
                       double kv_share = 1);

// A block as it is trained here, for microbatches of one sequence of that many tokens, whose rows
// are padded. The pace can offload.
double BlockOffloadRatio(const PipelineModel& model, int64_t tokens, const PipelinePace& pace);

// Of a schedule's stage: all its copies, were everything offloaded, over all its compute. The
// largest of any stage.
double OffloadRatio(const ScheduleShape& shape, const ScheduleCosts& costs);

}  // namespace shoal::plan

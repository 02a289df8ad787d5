// k, PipeOffload's measure of the cost of offloading (arXiv 2503.01328):
//
//   k = time to copy a layer's activations of a microbatch to the host and back
//       / time to compute the layer's forward and backward
//
// With k <= 1 everything can be offloaded while the device computes, with k <= 2 half of it; a
// stage of v chunks can offload floor(v / k) of them. Pure.
#pragma once

#include "core/model/recompute.h"
#include "core/plan/schedule/schedule_costs.h"

namespace shoal::plan {

// Bytes per token and hidden element of the paper's layer: GPT's with a hidden size h, an MLP of 4
// h and dropout, bf16, attention counted in full. 34 if everything is kept; without norms' outputs,
// GeLU's output and dropout masks 16 + 4 r, with r = kv_heads / heads (the paper uses r = 1).
double GptLayerBytes(Recompute recompute, double kv_share = 1);  // none or light

struct GptDevice {
  double flops = 220e12;                // an A100, as in the paper
  double copy_bytes_per_second = 15e9;  // either way
};
// With light recompute and r = 1: 10 / (3 (6 h + s)) x flops / copy rate.
double GptOffloadRatio(double hidden, double sequence, const GptDevice& device = {},
                       double kv_share = 1);

// For a schedule: all copies of a stage, if everything were offloaded, over all its compute.
// Returns the largest of any stage.
double OffloadRatio(const ScheduleShape& shape, const ScheduleCosts& costs);

}  // namespace shoal::plan

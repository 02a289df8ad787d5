// The rates by which a pipeline is planned: measured by a probe, or given in the job
// (cluster.pipeline). core/plan/pipeline/pace_costs.h turns them into costs.
#pragma once

namespace shoal::plan {

struct PipelinePace {
  double forward_flops = 0;  // per second, reached by the blocks' matrices in F, B and W
  double backward_input_flops = 0;
  double backward_weights_flops = 0;
  double attention_forward_flops = 0;       // 0: as matrices
  double attention_backward_flops = 0;      // 0: as matrices in B
  double head_flops = 0;                    // in all that the head does; 0: as matrices
  double elementwise_bytes_per_second = 0;  // of norms and SwiGLU made again; 0: not counted
  double offload_bytes_per_second = 0;      // device to host; 0: nothing can be offloaded
  double reload_bytes_per_second = 0;       // host to device; 0: nothing can be offloaded
  double message_bytes_per_second = 0;      // between stages; 0: not counted
  double message_latency_seconds = 0;
  bool duplex = false;  // both directions of copies at once (CopyStreams)
  bool paired = false;  // neighbours share a switch

  bool CanOffload() const { return offload_bytes_per_second > 0 && reload_bytes_per_second > 0; }
  bool operator==(const PipelinePace&) const = default;
};

}  // namespace shoal::plan

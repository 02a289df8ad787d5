// A job's worker groups (cluster.pipeline): over how many stages a copy of the model's layers is
// split, in which order stages work, and which activations go to host memory meanwhile.
// proto/job.proto has the keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/model/recompute.h"

namespace shoal::plan {

// The rates for planning a pipeline: measured by a probe, or given in the job.
// core/plan/pipeline/pace_costs.h turns them into costs.
struct PipelinePace {
  double forward_flops = 0;  // per second, reached by the blocks' matrices in F, B and W
  double backward_input_flops = 0;
  double backward_weights_flops = 0;
  double attention_forward_flops = 0;       // 0: as matrices
  double attention_backward_flops = 0;      // 0: as matrices in B
  double head_flops = 0;                    // of everything that the head computes; 0: as matrices
  double elementwise_bytes_per_second = 0;  // of recomputed norms and SwiGLU; 0: not counted
  double offload_bytes_per_second = 0;      // device to host; 0: nothing can be offloaded
  double reload_bytes_per_second = 0;       // host to device; 0: nothing can be offloaded
  double message_bytes_per_second = 0;      // between stages; 0: not counted
  double message_latency_seconds = 0;
  bool duplex = false;  // copies run in both directions concurrently (CopyStreams)
  bool paired = false;  // neighbours share a switch

  bool CanOffload() const { return offload_bytes_per_second > 0 && reload_bytes_per_second > 0; }
  bool operator==(const PipelinePace&) const = default;
};

// How many of each stage's chunks move their activations to host memory: kAuto, kHalf, kFull or a
// number: 2.25 means all microbatches of two chunks and every fourth of the third.
struct OffloadedChunks {
  static constexpr double kAuto = -1;  // as many as the budgets require
  static constexpr double kHalf = -2;  // rounded up
  static constexpr double kFull = -3;

  double value = kAuto;

  bool operator==(const OffloadedChunks&) const = default;
};

struct PipelineOptions {
  int64_t stages = 1;
  int64_t chunks = 0;             // per stage; 0: chosen
  std::string schedule = "auto";  // or a name, as core/plan/schedule/builders knows them
  // The keys of one stage are train.offload and train.recompute.
  OffloadedChunks offload;
  std::optional<Recompute> recompute;  // none: chosen
  int64_t device_memory = 0;           // bytes per stage for activations; 0: what there is
  int64_t host_memory = 0;             // bytes per stage for offloaded ones; 0: what there is
  // Bytes per second of the bus that the CPU's copies emulate, each way; 0: as fast as memory.
  double copy_rate = 0;
  // A probe measures rates of 0 when the job is submitted, and they are written into the job, so
  // that all stages plan with the same.
  PipelinePace pace;

  // Whether a step runs as a schedule, microbatches interleaved. Otherwise the worker runs each
  // microbatch from start to end.
  bool enabled() const {
    return stages > 1 || (offload.value != OffloadedChunks::kAuto && offload.value != 0) ||
           (recompute.has_value() && *recompute != Recompute::kNone) || device_memory > 0;
  }

  bool operator==(const PipelineOptions&) const = default;
};

}  // namespace shoal::plan

// What a job says of its worker groups (cluster.pipeline): over how many stages a copy of the
// model's layers is split, in which order the stages work, and what of their activations goes to
// host memory meanwhile. proto/job.proto has its keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/job/pipeline_pace.h"
#include "core/model/recompute.h"

namespace shoal::plan {

// How many of each stage's chunks move their activations to host memory: kAuto, kHalf, kFull or a
// number, of 2.25 all microbatches of two chunks and every fourth of the third.
struct OffloadedChunks {
  static constexpr double kAuto = -1;  // as many as the budgets ask for
  static constexpr double kHalf = -2;  // rounded up
  static constexpr double kFull = -3;

  double value = kAuto;

  bool operator==(const OffloadedChunks&) const = default;
};

struct PipelineOptions {
  int64_t stages = 1;
  int64_t chunks = 0;             // of each stage; 0: chosen
  std::string schedule = "auto";  // or a name, as core/plan/schedule/builders knows them
  OffloadedChunks offload;
  std::optional<Recompute> recompute;  // none: chosen
  int64_t device_memory = 0;           // bytes of a stage for activations; 0: what there is
  int64_t host_memory = 0;             // bytes of a stage for what is offloaded; 0: what there is
  // Bytes per second of the bus that the CPU's copies emulate, each way; 0: as fast as memory.
  double copy_rate = 0;
  // Rates of 0 are measured by a probe when the job is submitted, and written into it, so that all
  // stages plan with the same.
  PipelinePace pace;

  // A step is run as a schedule, microbatch by microbatch in an order of its own. Else the worker
  // runs each microbatch from begin to end.
  bool enabled() const {
    return stages > 1 || (offload.value != OffloadedChunks::kAuto && offload.value != 0) ||
           (recompute.has_value() && *recompute != Recompute::kNone) || device_memory > 0;
  }

  bool operator==(const PipelineOptions&) const = default;
};

}  // namespace shoal::plan

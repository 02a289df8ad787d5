// A step of a small transformer for tests: on one worker, and in a pipeline whose stages are
// threads of this process, each with its own machine. Weights and gradients pass through the
// devices' memory (worker/model/access/testing/passing.h), freed memory is filled with NaN, copies
// and messages come late.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/random.h"
#include "core/model/model_spec.h"
#include "core/model/recompute.h"
#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "worker/collectives/collectives.h"
#include "worker/model/batch/batch.h"
#include "worker/ops/compute_device.h"
#include "worker/pipeline/stage_report.h"

namespace shoal::worker {

struct StepConfig {
  plan::ModelSpec spec;
  DType compute = DType::kF32;
  std::vector<PackedBatch> batches;  // about half of the targets masked
};

// Returns `count` batches with a sequence for each entry of `high`, `low` to that many tokens long.
std::vector<PackedBatch> RandomBatches(const plan::ModelSpec& spec, int count, uint64_t seed,
                                       int64_t low, const std::vector<int64_t>& high);

// Returns schedules of every kind, of 2 to 4 stages.
std::vector<plan::Schedule> SchedulesOfStages(int microbatches);

// Adds contributions up as servers do in exact mode: each separately in fixed point, so that their
// order leaves no trace.
inline constexpr int kGradientBits = 44;  // after the point

struct StepOutcome {
  std::vector<double> losses;
  std::vector<std::vector<int64_t>> gradients;  // by unit
  bool finite = true;

  bool operator==(const StepOutcome&) const = default;
};

absl::StatusOr<StepOutcome> RunAlone(const StepConfig& config, ComputeDevice compute_device);

using MakeComputeDevice = std::function<ComputeDevice(int stage)>;
// Makes what carries messages from device to device; empty: they go over the links.
using MakeCollectives = std::function<std::unique_ptr<Collectives>(const Device& device)>;

struct PipelineOutcome {
  StepOutcome step;
  plan::ScheduleTimes planned;
  std::vector<StageReport> reports;  // by stage
};

// With `offload`, of chunks chosen at random. Returns the error of the first stage that failed.
absl::StatusOr<PipelineOutcome> RunPipeline(const StepConfig& config,
                                            const plan::Schedule& schedule,
                                            plan::Recompute recompute, bool offload,
                                            const MakeComputeDevice& make_device, Random& random,
                                            const MakeCollectives& make_collectives = nullptr);

}  // namespace shoal::worker

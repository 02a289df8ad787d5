// A stage of a pipeline on an emulated device: takes as long at each chunk and microbatch as it is
// told, and computes nothing, but treats memory and messages as one that does. A forward fills all
// of its activations and its output with a pattern of its chunk, its microbatch and its input; a
// backward finds them unchanged or fails with DataLoss. So a lost or late offload, a buffer that is
// another's or was freed too early, and a wrong message are errors with a name.
//
// Gradients are made up as in worker/paced/emulated_model.h: over a step each element of every unit
// sums to 1 exactly if every (chunk, microbatch) ran once.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/base/clock.h"
#include "core/model/model_spec.h"
#include "core/plan/schedule/layer_split.h"
#include "core/plan/schedule/schedule.h"
#include "core/plan/schedule/schedule_costs.h"
#include "worker/model/stage_model.h"

namespace shoal::worker {

struct EmulatedStageOptions {
  plan::ModelSpec spec;  // of the weights that travel
  int stage = 0;
  // Of every step; a step must have this many microbatches.
  plan::ScheduleShape shape;
  std::vector<plan::UnitRange> split;  // units by virtual stage
  // Returns what a microbatch takes at a chunk of this stage: seconds on the clock, and bytes. Only
  // the costs of forward and backward count.
  std::function<plan::ChunkCost(int chunk, int microbatch, const PackedBatch& batch)> cost;
  std::function<plan::ChunkBytes(int chunk, int microbatch, const PackedBatch& batch)> bytes;
};

// BeginStep and all later calls must come from one thread, the one that sleeps for the device.
std::unique_ptr<StageModel> MakeEmulatedStage(const EmulatedStageOptions& options, Clock& clock);

}  // namespace shoal::worker

// What a stage of a pipeline asks of the service: the units whose weights it gets, in the order in
// which its schedule gets them, and how many contributions it makes to each unit's gradient. Pure:
// the worker prefetches along the order and sizes its buffers by the counts. A worker without a
// pipeline is a stage that has everything in one chunk.
#pragma once

#include <span>
#include <vector>

#include "core/model/model_spec.h"
#include "core/plan/schedule/layer_split.h"
#include "core/plan/schedule/schedule.h"

namespace shoal::plan {

// The one chunk of a worker without a pipeline.
UnitRange AllUnits(const ModelSpec& spec);

// Return the units that a chunk gets in its forward, and in its backward for the input (split or
// joined); the backward for the weights gets none. The head is got only in the backward, where its
// loss is computed too, and with tied embeddings unit 0 after it; the embedding is got only in the
// forward.
std::vector<int> ForwardUses(const ModelSpec& spec, UnitRange chunk);
std::vector<int> BackwardUses(const ModelSpec& spec, UnitRange chunk);
// Of a forward with nothing but the loss after it, if the chunk has the head.
std::vector<int> EvaluationUses(const ModelSpec& spec, UnitRange chunk);

// For a stage's list of actions; `chunks` are its units by chunk. `evaluates`: of a schedule that
// does.
std::vector<int> StageUseOrder(const ModelSpec& spec, const StageActions& actions,
                               std::span<const UnitRange> chunks, bool evaluates = false);

// Returns, by unit, how many contributions to its gradient the stage makes for each microbatch. 0
// for a unit that the stage does not use and whose weights it does not get. With tied embeddings
// unit 0 gets one from the head and one from the embedding, which may be on two stages.
std::vector<int> StageContributions(const ModelSpec& spec, std::span<const UnitRange> chunks);
// Returns those that there are where units are frozen: none to these.
std::vector<int> TrainedContributions(std::span<const UnitSpec> units,
                                      std::vector<int> contributions);

}  // namespace shoal::plan

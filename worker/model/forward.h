// Forward over the units before the head, from tokens or from another chunk's output: shared by
// training, evaluation and pipelines.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "core/plan/schedule/layer_split.h"
#include "worker/model/held_unit.h"
#include "worker/model/microbatch_input.h"

namespace shoal::worker {

// `units` exclude the head. Without the embedding, the first unit's input must be there already.
// `activations` says where a block unit's are; each unit's output is the next one's input, and the
// last one's is `output`.
absl::Status ForwardUnits(Transformer& model, const MicrobatchInput& microbatch, UnitSource& source,
                          plan::UnitRange units,
                          const std::function<BlockActivations(int unit)>& activations,
                          Matrix output);

}  // namespace shoal::worker

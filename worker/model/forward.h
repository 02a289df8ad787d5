// The way forward over the units before the head, from tokens or from what another chunk made:
// what training, evaluation and pipelines share.
#pragma once

#include <functional>

#include "absl/status/status.h"
#include "core/plan/schedule/layer_split.h"
#include "worker/model/held_unit.h"
#include "worker/model/microbatch_input.h"

namespace shoal::worker {

// `units` are without the head. Where the embedding is not among them, the first one's input is
// there already. `activations` says where a block unit's are; each unit's output is the next one's
// input, and the last one's is `output`.
absl::Status ForwardUnits(Transformer& model, const MicrobatchInput& microbatch, UnitSource& source,
                          plan::UnitRange units,
                          const std::function<BlockActivations(int unit)>& activations,
                          Matrix output);

}  // namespace shoal::worker

// A step with synchronization layer: what collective sharded training does.
// - A get starts once every worker has started it, and so does a push; collectives follow each
//   other.
// - A worker has at most one outstanding push, and blocks at the next until that one is done.
// - All workers run the same number of microbatches.
//
// Workers are kept in arrays and walked use by use, which is exact and needs no queue of events.
#pragma once

#include <vector>

#include "core/sim/spans.h"
#include "core/sim/use_pattern.h"
#include "core/sim/worker_step.h"

namespace shoal::sim {

struct LayerStepResult {
  std::vector<WorkerTimes> workers;
  int64_t barriers = 0;  // collectives
};

// `transfers`: of the collectives, SlowestOf all workers. `microbatches[m][w]`: of worker w, zero
// if it has none. `spans` may be null.
LayerStepResult RunLayerStep(const UsePattern& pattern, const TransferTimes& transfers,
                             const std::vector<std::vector<MicrobatchTime>>& microbatches,
                             SpanSink* spans);

}  // namespace shoal::sim

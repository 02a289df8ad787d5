// What the coordinator is told of a microbatch that was computed.
#pragma once

#include "core/plan/pipeline/pace_costs.h"
#include "proto/coordinator.pb.h"
#include "worker/model/batch/batch.h"

namespace shoal::worker {

// Adds it to the report of its step. An empty one took no time worth telling.
void ReportMicrobatch(const plan::MicrobatchSize& size, const MicrobatchResult& result,
                      double seconds, proto::FinishedReport& report);

}  // namespace shoal::worker

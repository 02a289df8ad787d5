// What the coordinator is told of a microbatch that was computed.
#pragma once

#include "plan/pipeline_pace.h"
#include "proto/shoal.pb.h"
#include "worker/model/batch.h"

namespace shoal::worker {

// Adds it to the report of its step. An empty one took no time worth telling.
void ReportMicrobatch(const plan::MicrobatchSize& size, const MicrobatchResult& result,
                      double seconds, proto::FinishedReport& report);

}  // namespace shoal::worker

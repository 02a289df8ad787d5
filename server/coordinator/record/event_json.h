// Events of a job as the JSON of `shoal train --json` and of a run's record (docs/run-record.md).
#pragma once

#include <vector>

#include "core/base/json/json.h"
#include "proto/coordinator.pb.h"

namespace shoal::server {

Json ToJson(const proto::StepEvent& event);
Json ToJson(const proto::CheckpointEvent& event);
Json ToJson(const proto::DoneEvent& event);
Json ToJson(const proto::FailedEvent& event);

// What the workers' time went to, as means of their shares of a step.
Json MeanShares(const std::vector<proto::LastStep>& steps);

}  // namespace shoal::server

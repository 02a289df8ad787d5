// Events of a job as the JSON of `shoal train --json` and of a run's record (docs/run-record.md).
#pragma once

#include <utility>
#include <vector>

#include "core/base/json/json.h"
#include "proto/coordinator.pb.h"

namespace shoal::server {

Json ToJson(const proto::StepEvent& event);
Json ToJson(const proto::ValidationEvent& event);
Json ToJson(const proto::CheckpointEvent& event);
Json ToJson(const proto::RestartEvent& event);
Json ToJson(const proto::DoneEvent& event);
Json ToJson(const proto::FailedEvent& event);

// What of it is known.
Json ToJson(const proto::HostFacts& facts);

// What a worker's time may go to, by the names of records and `shoal status --json`.
inline constexpr std::pair<const char*, double (proto::LastStep::*)() const> kTimeShares[] = {
    {"compute", &proto::LastStep::compute},
    {"get_wait", &proto::LastStep::get_wait},
    {"push_wait", &proto::LastStep::push_wait},
    {"layer_wait", &proto::LastStep::layer_wait},
    {"neighbour_wait", &proto::LastStep::neighbour_wait},
    {"transfer_wait", &proto::LastStep::transfer_wait},
    {"step_wait", &proto::LastStep::step_wait}};

// What the workers' time went to, as means of their shares of a step.
Json MeanShares(const std::vector<proto::LastStep>& steps);

}  // namespace shoal::server

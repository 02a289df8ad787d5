// Events of a job as the JSON of `shoal train --json` and of a run's record (docs/run-record.md).
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "core/base/json/json.h"
#include "core/base/time_kind.h"
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

// What a worker's time may go to, by the names of records and `shoal status`.
inline constexpr std::pair<std::string_view, double (proto::LastStep::*)() const> kTimeShares[] = {
    {"compute", &proto::LastStep::compute},
    {Name(TimeKind::kGetWait), &proto::LastStep::get_wait},
    {Name(TimeKind::kPushWait), &proto::LastStep::push_wait},
    {Name(TimeKind::kLayerWait), &proto::LastStep::layer_wait},
    {Name(TimeKind::kNeighbourWait), &proto::LastStep::neighbour_wait},
    {Name(TimeKind::kTransferWait), &proto::LastStep::transfer_wait},
    {Name(TimeKind::kStepWait), &proto::LastStep::step_wait}};

// What the workers' time went to, as means of their shares of a step.
Json MeanShares(const std::vector<proto::LastStep>& steps);

}  // namespace shoal::server

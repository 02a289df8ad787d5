// Adds up a worker's reports of the rounds of one attempt, without packs and connections. Pure.
#pragma once

#include <optional>

#include "proto/coordinator.pb.h"

namespace shoal::server {

void AddRound(const proto::FinishedReport& round, std::optional<proto::FinishedReport>& sum);

}  // namespace shoal::server

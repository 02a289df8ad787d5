// How a server calls others for state and gradients, over gRPC.
#pragma once

#include <string>

#include "core/rpc/channel.h"
#include "server/copy/gradient_sender.h"
#include "server/copy/state_link.h"

namespace shoal::server {

// Of the server at that address.
GiverCalls CallsOfGiver(const std::string& address, const rpc::Security& security);
GradientTaker CallsOfBackup(const std::string& address, const rpc::Security& security);

}  // namespace shoal::server

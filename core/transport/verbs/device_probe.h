// Describes the machine's RDMA devices for ChooseDevices: opens, queries and closes each. Called
// when a transport is made, and by `shoal doctor`.
#pragma once

#include <vector>

#include "core/transport/verbs/api.h"
#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::transport {

// In the order in which the system lists them. A device that cannot be opened or queried has no
// ports, and its `problem` says why and what to do.
std::vector<DeviceDescription> DescribeDevices(VerbsApi& api);

}  // namespace shoal::transport

// Looks at the RDMA devices there are and describes them for ChooseDevices: each is opened, asked
// and closed again. Called when a transport is made, and by `shoal doctor`.
#pragma once

#include <vector>

#include "core/transport/verbs/api.h"
#include "core/transport/verbs/topology/device_choice.h"

namespace shoal::transport {

// In the order in which the system lists them. A device that cannot be opened or asked is there
// without ports, and its `problem` says why and what to do.
std::vector<DeviceDescription> DescribeDevices(VerbsApi& api);

}  // namespace shoal::transport

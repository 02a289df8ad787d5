// Memory of the host that a device's copies reach at full speed, for the client's buffers.
#pragma once

#include "client/registered_memory.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

// `host` is a Device's NewHostMemory; what is allocated must not outlive it.
client::HostAllocator AllocatorOf(Memory* host);

}  // namespace shoal::worker

// Memory of a device, or of the host that its copies reach at full speed, for the client's buffers.
#pragma once

#include "client/registered_memory.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

// `host` is a Device's NewHostMemory; what is allocated must not outlive it.
client::BufferAllocator PinnedAllocator(Memory* host);
// In the device's own memory, which the host does not touch.
client::BufferAllocator DeviceAllocator(Device* device);

}  // namespace shoal::worker

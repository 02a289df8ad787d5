// How weights and gradients move between a device and the service: straight into and out of the
// device's memory where transports reach it (core/transport/gpu_memory.h), else through pinned
// memory of the host.
//
// Directly they move as they lie on the device: weights in the compute type, gradients in fp32 (the
// client converts on the host). Weights do so only where that is no slower
// (Capabilities::slow_gpu_reads). All transports must reach the device, since a server may be
// reached over any; if all servers are on this host, those that do not are left out.
#pragma once

#include <string>
#include <vector>

#include "client/options.h"
#include "core/base/dtype.h"
#include "core/transport/transport.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

struct GpuDirect {
  bool get = false;   // weights land in the device's memory
  bool push = false;  // gradients are written out of it
  std::string why;  // one of them is not so, or which transports are left out for it; may be empty
  // Of the client: buffers for weights, and what it uses.
  client::BufferAllocator view_memory;
  std::vector<transport::Transport*> transports;
};

struct GpuDirectRequest {
  Device* device = nullptr;
  Memory* pinned = nullptr;       // of the device
  bool transports_reach = false;  // they were given the way to its memory
  DType compute_type = DType::kF32;
  DType wire_type = DType::kF32;
  DType gradient_type = DType::kF32;
  bool local = false;  // all servers are on this host
};

// Device and pinned memory must outlive what is allocated. Errors are the device's.
absl::StatusOr<GpuDirect> ChooseGpuDirect(const GpuDirectRequest& request,
                                          const std::vector<transport::Transport*>& transports);

// Memory for the client's buffers: of the host, that a device's copies reach at full speed.
// `host` is a Device's NewHostMemory; what is allocated must not outlive it.
client::BufferAllocator PinnedAllocator(Memory* host);
// In the device's own memory, which the host does not touch.
client::BufferAllocator DeviceAllocator(Device* device);

}  // namespace shoal::worker

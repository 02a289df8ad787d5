// How weights and gradients move between a device and the service: directly between servers and
// device memory if transports reach it (core/transport/gpu_memory.h), otherwise through pinned host
// memory.
//
// Direct transfers keep the device's types: weights in the compute type, gradients in fp32 (only
// the host converts). Weights go directly only if that is no slower (Capabilities::slow_gpu_reads).
// All transports must reach the device, since a server may be reached over any; if all servers are
// on this host, transports that do not are left out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "client/options.h"
#include "core/base/dtype.h"
#include "core/transport/transport.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

struct GpuDirect {
  bool get = false;   // weights land in device memory
  bool push = false;  // gradients are pushed from device memory
  std::string why;    // why not both, or which transports are left out for it; may be empty
  // For the client: the allocator of its buffers for weights, and its transports.
  client::BufferAllocator view_memory;
  std::vector<transport::Transport*> transports;
};

struct GpuDirectRequest {
  Device* device = nullptr;
  Memory* pinned = nullptr;       // of the device
  bool transports_reach = false;  // they have access to its memory
  DType compute_type = DType::kF32;
  DType wire_type = DType::kF32;
  DType gradient_type = DType::kF32;
  std::string_view converts;  // the key by which the host makes some weights; empty: none
  bool local = false;         // all servers are on this host
};

// Device and pinned memory must outlive the allocations. Errors are the device's.
absl::StatusOr<GpuDirect> ChooseGpuDirect(const GpuDirectRequest& request,
                                          const std::vector<transport::Transport*>& transports);

// Allocates host memory to and from which a device copies at full speed. `host` is a Device's
// NewHostMemory and must outlive the allocations.
client::BufferAllocator PinnedAllocator(Memory* host);
// Allocates device memory, which the host does not access.
client::BufferAllocator DeviceAllocator(Device* device);

}  // namespace shoal::worker

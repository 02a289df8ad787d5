// Where weights land that the client fetches for a device: in the device's own memory where the
// transports reach it (transport/gpu_memory.h), so that no memory of the host lies in between;
// else in pinned memory of the host, from which the device copies.
//
// Reaching it needs weights that travel in the type they are computed in (the client converts on
// the host), and transports that take the device's memory. All of them have to, for a server may be
// reached over any; but where all servers are on this host, those that do not are left out.
#pragma once

#include <string>
#include <vector>

#include "client/registered_memory.h"
#include "transport/transport.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

struct Landing {
  bool on_device = false;
  std::string why;  // it is not, or which transports are left out for it; may be empty
  client::BufferAllocator view_memory;
  std::vector<transport::Transport*> transports;
};

struct LandingRequest {
  Device* device = nullptr;
  Memory* pinned = nullptr;       // of the device
  bool transports_reach = false;  // they were given the way to the device's memory
  bool same_type = false;         // weights travel in the type that is computed with
  bool local = false;             // all servers are on this host
};

// Both kinds of memory must outlive what is allocated. Errors are the device's.
absl::StatusOr<Landing> ChooseLanding(const LandingRequest& request,
                                      const std::vector<transport::Transport*>& transports);

}  // namespace shoal::worker

// How much memory this process may lock. RDMA devices access locked memory, and the kernel counts
// it against RLIMIT_MEMLOCK unless the process has the capability IPC_LOCK in effect. Containers
// are often given that capability without it being in effect: it applies only to root, not to a
// process of another user.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace shoal::transport {

struct LockedMemory {
  int64_t limit_bytes = -1;          // -1: unlimited
  bool capable = false;              // IPC_LOCK is in effect, so the limit does not count
  bool capability_in_reach = false;  // the container has it, though perhaps not in effect
};

// Reads the limits of this process. `root` is put before /proc, for tests (the limit itself comes
// from the kernel).
LockedMemory ReadLockedMemory(const std::string& root = "");

// ResourceExhausted, with what to do, if `bytes` cannot be locked. OK promises nothing: memory
// already locked counts too.
absl::Status CheckLockedMemory(const LockedMemory& memory, int64_t bytes);

}  // namespace shoal::transport

// How much memory this process may lock. RDMA devices reach memory that is locked, and the kernel
// counts it against RLIMIT_MEMLOCK unless the process has the capability IPC_LOCK in effect. In a
// container that capability is often given and yet not in effect: it is only for root, and a
// process of another user does not get it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace shoal::transport {

struct LockedMemory {
  int64_t limit_bytes = -1;  // -1: unlimited
  bool capable = false;      // IPC_LOCK is in effect, so the limit does not count
  bool capability_in_reach =
      false;  // it was given to the container, though it may not be in effect
};

// Of this process. `root` is put before /proc, for tests (the limit itself is asked of the kernel).
LockedMemory ReadLockedMemory(const std::string& root = "");

// ResourceExhausted, with what to do, where `bytes` cannot be locked. OK promises nothing: what is
// locked already counts too.
absl::Status CheckLockedMemory(const LockedMemory& memory, int64_t bytes);

}  // namespace shoal::transport

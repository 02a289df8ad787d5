// The CPU as a device: memory of this process, within a budget that is enforced as strictly as a
// GPU's. Compute streams run in the calling thread; each copy stream has its own thread and copies
// at the memory's speed or at a set rate, as a bus would.
#pragma once

#include <memory>

#include "absl/time/time.h"
#include "core/base/clock.h"
#include "worker/backend/backend.h"

namespace shoal::worker {

// How copy streams copy.
struct CpuCopyOptions {
  // Rate of each stream; 0: as fast as memory. A copy of n bytes takes at least
  // n / bytes_per_second from when it is put on the stream and the stream is free.
  double bytes_per_second = 0;

  // For tests. Each copy begins up to this much later, depending on the seed.
  absl::Duration longest_delay = absl::ZeroDuration();
  uint64_t seed = 1;
  // For each stream: the copy of this number (from 1) and all later ones fail; 0: none.
  int64_t fail_at_copy = 0;
};

// `budget_bytes` 0: no limit but the machine's. Copies and events use the clock.
std::unique_ptr<Device> MakeCpuDevice(int64_t budget_bytes = 0, const CpuCopyOptions& copies = {},
                                      Clock& clock = RealClock());

}  // namespace shoal::worker

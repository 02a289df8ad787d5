// Collectives through NCCL, among GPUs of one machine or several.
//
// Communicators are made so that no call blocks (blocking = 0 in NCCL's configuration): a call that
// continues in the background is polled until it is done, the time is up, or the communicator has
// failed meanwhile. So a dead rank costs the others at most their timeout, and usually the few
// milliseconds until `check` tells.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/collectives/collectives.h"

namespace shoal::worker {

// `device` (from MakeCudaDevice) must outlive it. NotFound without the library, FailedPrecondition
// if it is too old.
absl::StatusOr<std::unique_ptr<Collectives>> OpenNccl(const Device& device);

}  // namespace shoal::worker

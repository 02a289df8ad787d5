// Collectives by NCCL, among GPUs of one machine or several.
//
// Communicators are made so that no call blocks (blocking = 0 of NCCL's configuration): a call that
// goes on in the background is asked after until it is done, the time is up, or the communicator
// has failed meanwhile. So a dead rank costs the others their timeout at most, and as a rule the
// few milliseconds until `check` tells.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"
#include "worker/collectives/collectives.h"

namespace shoal::worker {

// `device` (of MakeCudaDevice) must outlive it. NotFound without the library, FailedPrecondition
// where it is too old.
absl::StatusOr<std::unique_ptr<Collectives>> OpenNccl(const Device& device);

}  // namespace shoal::worker

// Turns NCCL's results into statuses: one line that says what was done, NCCL's name of the error
// and its message.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "worker/collectives/nccl/nccl_api.h"

namespace shoal::worker {

// Not for ncclInProgress. `communicator` may be null. Errors of other ranks and of the network are
// Unavailable; a call or a set of ranks that NCCL does not accept is FailedPrecondition.
absl::Status ToStatus(const Nccl& nccl, ncclResult_t result, ncclComm_t communicator,
                      std::string_view what);

// Returns "2.28.9".
std::string NcclVersionName(int version);

}  // namespace shoal::worker

#include "worker/collectives/nccl/nccl_status.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::worker {
namespace {

std::string OneLine(const char* text) {
  std::string line = text == nullptr ? "" : text;
  std::ranges::replace(line, '\n', ' ');
  while (!line.empty() && line.back() == ' ') {
    line.pop_back();
  }
  return line;
}

absl::StatusCode CodeOf(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:
    case ncclRemoteError:
      return absl::StatusCode::kUnavailable;
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::StatusCode::kFailedPrecondition;
    default:
      return absl::StatusCode::kInternal;
  }
}

}  // namespace

absl::Status ToStatus(const Nccl& nccl, ncclResult_t result, ncclComm_t communicator,
                      std::string_view what) {
  if (result == ncclSuccess) {
    return absl::OkStatus();
  }
  const std::string told = OneLine(nccl.get_last_error(communicator));
  return absl::Status(CodeOf(result),
                      fmt::format("{}: NCCL: {}{}{}", what, OneLine(nccl.get_error_string(result)),
                                  told.empty() ? "" : ": ", told));
}

std::string NcclVersionName(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace shoal::worker

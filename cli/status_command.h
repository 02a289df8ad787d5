// `shoal status`: what a running coordinator says of its job and members.
#pragma once

#include <string>

#include "cli/run/command.h"
#include "cli/run/job_access.h"
#include "core/rpc/token.h"

namespace shoal::cli {

struct StatusOptions {
  JobAccess access;
  bool json = false;
  bool watch = false;
};
absl::StatusOr<ExitCode> RunStatus(const StatusOptions& options, Streams& streams);
absl::StatusOr<ExitCode> ShowStatus(const CoordinatorAddress& coordinator, bool json,
                                    Streams& streams);

}  // namespace shoal::cli

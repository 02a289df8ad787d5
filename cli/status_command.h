// `shoal status`: what a running coordinator says of its job and members. Which one: that of a
// `shoal train` on this machine, by its job file or checkpoint directory (run_access.h), or any by
// address and token.
#pragma once

#include <string>

#include "cli/run/command.h"
#include "core/rpc/token.h"

namespace shoal::cli {

struct StatusOptions {
  // One of these three.
  std::string job_file;     // whose checkpoint directory, or whose cluster.coordinator
  std::string run;          // checkpoint directory of a `shoal train` with a local cluster
  std::string coordinator;  // HOST:PORT
  std::string token_file;   // empty: the local run's own, else the environment's SHOAL_TOKEN
  bool json = false;
  bool watch = false;
};
absl::StatusOr<ExitCode> RunStatus(const StatusOptions& options, Streams& streams);
absl::StatusOr<ExitCode> ShowStatus(const std::string& coordinator, const rpc::Token& token,
                                    bool json, Streams& streams);

}  // namespace shoal::cli

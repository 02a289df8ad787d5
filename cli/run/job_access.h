// Which coordinator a command asks: that of a `shoal train` on this machine, by its job file or
// checkpoint directory (run_access.h), or any by address and token.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/rpc/token.h"

namespace CLI {
class App;
}

namespace shoal::cli {

struct JobAccess {
  // One of these three.
  std::string job_file;     // whose checkpoint directory, or whose cluster.coordinator
  std::string run;          // checkpoint directory of a `shoal train` with a local cluster
  std::string coordinator;  // HOST:PORT
  std::string token_file;   // empty: the local run's own, else the environment's SHOAL_TOKEN
};
void AddJobAccess(CLI::App& command, JobAccess& access);

// Returns the checkpoint directory of the local run that is meant; empty: another coordinator is.
absl::StatusOr<std::string> LocalRunOf(const JobAccess& access);

struct CoordinatorAddress {
  std::string address;
  rpc::Token token;
};
// NotFound where no such run goes on; InvalidArgument where none is named.
absl::StatusOr<CoordinatorAddress> FindCoordinator(const JobAccess& access);

}  // namespace shoal::cli

// Which coordinator a command asks: that of a `shoal train` on this machine, by its job file or
// checkpoint directory (run_access.h), or any by address, token and certificate.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "core/job/job.h"
#include "core/rpc/channel.h"
#include "core/rpc/security.h"
#include "proto/coordinator.pb.h"

namespace CLI {
class App;
}

namespace shoal::cli {

struct JobAccess {
  // One of these three.
  std::string job_file;     // whose checkpoint directory, or whose cluster.coordinator
  std::string run;          // checkpoint directory of a `shoal train` with a local cluster
  std::string coordinator;  // HOST:PORT
  // Empty: the local run's own, else the environment's SHOAL_TOKEN, else the job's.
  std::string token_file;
  rpc::TlsOptions tls;
};
void AddJobAccess(CLI::App& command, JobAccess& access);

// Returns the checkpoint directory of the local run that is meant; empty: another coordinator is.
absl::StatusOr<std::string> LocalRunOf(const JobAccess& access);

struct CoordinatorAddress {
  std::string address;
  rpc::Security security;

  std::shared_ptr<rpc::Channel> Connect() const;
};
// NotFound where no such run goes on; InvalidArgument where none is named.
absl::StatusOr<CoordinatorAddress> FindCoordinator(const JobAccess& access);

// The coordinator of cluster.coordinator, or of a local cluster that is yet to start: without an
// address, with a token of its own.
absl::StatusOr<CoordinatorAddress> CoordinatorOf(const plan::Job& job,
                                                 const std::string& token_file,
                                                 const rpc::TlsOptions& tls);

// Returns the job that runs or waits at a coordinator with this checkpoint directory.
absl::StatusOr<std::optional<proto::JobSummary>> FindJobOf(const std::string& checkpoint_directory,
                                                           rpc::Channel& coordinator);

}  // namespace shoal::cli

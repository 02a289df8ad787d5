// Flags that a job's programs (coordinator, server, worker) share, and their effects.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/logging.h"
#include "core/base/metrics.h"
#include "core/rpc/security.h"

namespace CLI {
class App;
}

namespace shoal::rpc {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitLeftJob = 75;  // told to leave a job that goes on: start it again

struct ProgramFlags {
  std::string token_file;
  TlsOptions tls;
  int metrics_port = -1;     // -1: no metrics, 0: a free one
  std::string metrics_host;  // empty: that of the program's service
  int health_port = -1;      // likewise
  std::string log_level = "info";
  std::string log_format = "text";  // or json
};
// --tls and --tls-domain, here and in commands of `shoal`.
void AddTlsFlags(CLI::App& app, TlsOptions& options);
// Also adds --version, which prints `program`.
void AddProgramFlags(CLI::App& app, const std::string& program, ProgramFlags& flags);

// Flags of programs that register with a coordinator.
struct MemberFlags {
  std::string coordinator;
  std::string index;  // a number, or kIndexAuto; empty: the coordinator chooses
  bool stay = false;
};
inline constexpr const char* kIndexAuto = "auto";
// Returns the index that the flag says, or -1. With kIndexAuto what the environment's
// JOB_COMPLETION_INDEX (Kubernetes) or SLURM_PROCID say, else the number at the end of `host`;
// InvalidArgument where there is none.
absl::StatusOr<int> IndexOf(const MemberFlags& flags, const std::string& host);

// `members`: "servers".
void AddMemberFlags(CLI::App& app, const std::string& members, MemberFlags& flags);

// Returns the exit code if the program must end here: wrong flags, or --help.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv);

// Of a program that stands in lines as `role`. Keeps them for `shoal logs`.
LogOptions LogOptionsOf(const std::string& role, const ProgramFlags& flags);

// The token and, where the flags ask for TLS, the certificate of a program of that role. `metrics`
// must outlive it.
absl::StatusOr<Security> LoadSecurity(const ProgramFlags& flags, Role own, Metrics& metrics);

// Serves metrics if the flags give a port, on the host of `listen` if they give none. Returns the
// port; 0: nowhere.
absl::StatusOr<int> ServeMetrics(const ProgramFlags& flags, const std::string& listen,
                                 Metrics& metrics);

}  // namespace shoal::rpc

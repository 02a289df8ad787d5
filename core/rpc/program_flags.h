// What a job's programs (coordinator, server, worker) are told alike on their command lines, and
// what they do with it alike.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "core/base/metrics.h"

namespace CLI {
class App;
}

namespace shoal::rpc {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;

struct ProgramFlags {
  std::string token_file;
  int metrics_port = -1;  // -1: no metrics, 0: a free one
  std::string log_level = "info";
};
// Also --version, which says `program`.
void AddProgramFlags(CLI::App& app, const std::string& program, ProgramFlags& flags);

// Of who registers with a coordinator.
struct MemberFlags {
  std::string coordinator;
  int index = -1;  // -1: the coordinator chooses
};
// `members`: "servers".
void AddMemberFlags(CLI::App& app, const std::string& members, MemberFlags& flags);

// The exit code, where the program is over with it: flags that are wrong, or --help.
std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv);

// Where a port was asked for.
absl::Status ServeMetrics(const ProgramFlags& flags, Metrics& metrics);

}  // namespace shoal::rpc

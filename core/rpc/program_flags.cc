#include "core/rpc/program_flags.h"

#include "CLI/CLI.hpp"
#include "core/base/flag_checks.h"
#include "core/base/logging.h"
#include "core/base/status.h"
#include "core/rpc/member_session.h"
#include "core/rpc/token.h"

namespace shoal::rpc {

void AddProgramFlags(CLI::App& app, const std::string& program, ProgramFlags& flags) {
  app.add_option("--token-file", flags.token_file,
                 fmt::format("File with the token that all calls carry; without it, the "
                             "environment variable {}",
                             kTokenVariable));
  app.add_option("--metrics-port", flags.metrics_port,
                 "Port of the Prometheus metrics; 0 picks a free one");
  app.add_option("--metrics-host", flags.metrics_host, "Address that metrics are served on")
      ->capture_default_str();
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  app.set_version_flag("--version", fmt::format("{} {}", program, ProgramVersion()));
}

void AddMemberFlags(CLI::App& app, const std::string& members, MemberFlags& flags) {
  app.add_option("--coordinator", flags.coordinator, "HOST:PORT of the job's coordinator")
      ->required();
  app.add_option("--index", flags.index,
                 fmt::format("Its number among the job's {}, which names it in logs and `shoal "
                             "status`; without it, the lowest that is free",
                             members))
      ->check(AtLeast(0));
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return std::nullopt;
}

absl::Status ServeMetrics(const ProgramFlags& flags, Metrics& metrics) {
  if (flags.metrics_port >= 0) {
    SHOAL_ASSIGN_OR_RETURN(const int port, metrics.Serve(flags.metrics_port, flags.metrics_host));
    metrics
        .gauge("shoal_build_info", "1, with the version of this program.",
               {{"version", ProgramVersion()}})
        .Set(1);
    LogInfo("metrics on port {}", port);
  }
  return absl::OkStatus();
}

}  // namespace shoal::rpc

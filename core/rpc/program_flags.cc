#include "core/rpc/program_flags.h"

#include <cstdlib>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "core/base/logging.h"
#include "core/base/net/address.h"
#include "core/base/net/address_flag.h"
#include "core/base/process/process_metrics.h"
#include "core/base/status.h"
#include "core/rpc/member_session.h"
#include "core/rpc/token.h"

namespace shoal::rpc {
namespace {

constexpr int kMaxIndex = 4095;

std::optional<int> ParseIndex(const std::string& text) {
  int index = 0;
  return absl::SimpleAtoi(text, &index) && index >= 0 && index <= kMaxIndex
             ? std::optional<int>(index)
             : std::nullopt;
}

CLI::Validator IndexOrAuto() {
  return {[](std::string& text) {
            return text == kIndexAuto || ParseIndex(text).has_value()
                       ? std::string()
                       : fmt::format("{} is neither a number from 0 to {} nor auto", text,
                                     kMaxIndex);
          },
          "INDEX"};
}

}  // namespace

absl::StatusOr<int> IndexOf(const MemberFlags& flags, const std::string& host) {
  if (flags.index != kIndexAuto) {
    return ParseIndex(flags.index).value_or(-1);
  }
  for (const char* variable : {"JOB_COMPLETION_INDEX", "SLURM_PROCID"}) {
    const char* value = std::getenv(variable);
    if (value == nullptr) {
      continue;
    }
    const std::optional<int> index = ParseIndex(value);
    return index.has_value()
               ? absl::StatusOr<int>(*index)
               : InvalidArgument("--index auto: {} is '{}', not a number from 0 to {}", variable,
                                 value, kMaxIndex);
  }
  const std::optional<int> index = ParseIndex(host.substr(host.find_last_not_of("0123456789") + 1));
  return index.has_value()
             ? absl::StatusOr<int>(*index)
             : InvalidArgument(
                   "--index auto: neither JOB_COMPLETION_INDEX nor SLURM_PROCID is set, and the "
                   "host's name {} does not end in a number: say --index NUMBER",
                   host);
}

void AddTlsFlags(CLI::App& app, TlsOptions& options) {
  app.add_option("--tls", options.folder,
                 fmt::format("Folder with tls.crt, tls.key and ca.crt, or with one such for each "
                             "role: calls are encrypted, and made and taken with certificates "
                             "alone (default: {}, or plain text)",
                             kTlsVariable))
      ->envname(kTlsVariable);
  app.add_option("--tls-domain", options.domain, "Domain in the names of certificates")
      ->capture_default_str();
}

void AddProgramFlags(CLI::App& app, const std::string& program, ProgramFlags& flags) {
  app.add_option("--token-file", flags.token_file,
                 fmt::format("File with the token that all calls carry; without it, the "
                             "environment variable {}",
                             kTokenVariable));
  AddTlsFlags(app, flags.tls);
  app.add_option("--metrics-port", flags.metrics_port,
                 "Port of the Prometheus metrics; 0 picks a free one");
  app.add_option("--metrics-host", flags.metrics_host,
                 "Address that metrics are served on; without it, that of --listen");
  app.add_option(
      "--health-port", flags.health_port,
      "Port for probes (gRPC health of `live` and `ready`, no token); 0 picks a free one");
  app.add_option("--log-level", flags.log_level, "trace, debug, info, warn, error or off")
      ->capture_default_str();
  app.add_option("--log-format", flags.log_format, "text, or json: one object a line")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "json"}));
  app.set_version_flag("--version", fmt::format("{} {}", program, ProgramVersion()));
}

void AddMemberFlags(CLI::App& app, const std::string& members, MemberFlags& flags) {
  app.add_option("--coordinator", flags.coordinator,
                 "HOST:PORT of the job's coordinator; of several that stand by for each other "
                 "all, with commas")
      ->required()
      ->check(HostsAndPorts());
  app.add_option("--index", flags.index,
                 fmt::format("Its number among the job's {}, which names it in logs and `shoal "
                             "status`; auto: JOB_COMPLETION_INDEX, SLURM_PROCID, or the number at "
                             "the end of the host's name; without it, the lowest that is free",
                             members))
      ->check(IndexOrAuto());
  app.add_flag("--stay", flags.stay,
               "Take job after job, and wait for the coordinator when it is gone, until SIGTERM");
}

std::optional<int> ParseCommandLine(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  return std::nullopt;
}

LogOptions LogOptionsOf(const std::string& role, const ProgramFlags& flags) {
  return {.role = role, .level = flags.log_level, .json = flags.log_format == "json", .keep = true};
}

absl::StatusOr<Security> LoadSecurity(const ProgramFlags& flags, Role own, Metrics& metrics) {
  SHOAL_ASSIGN_OR_RETURN(Token token, LoadToken(flags.token_file));
  return Security::Create(std::move(token), flags.tls, own, &metrics);
}

absl::StatusOr<int> ServeMetrics(const ProgramFlags& flags, const std::string& listen,
                                 Metrics& metrics) {
  if (flags.metrics_port < 0) {
    return 0;
  }
  metrics.Add(MakeProcessMetrics());
  metrics.SetInfo("shoal_build_info", "1, with the version of this program.",
                  {{"version", ProgramVersion()}});
  const std::string host = flags.metrics_host.empty() ? HostOf(listen) : flags.metrics_host;
  SHOAL_ASSIGN_OR_RETURN(const int port, metrics.Serve(flags.metrics_port, host));
  LogInfo("metrics on port {}", port);
  return port;
}

}  // namespace shoal::rpc

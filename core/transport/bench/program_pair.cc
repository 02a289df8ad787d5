#include "core/transport/bench/program_pair.h"

#include "core/base/clock.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr absl::Duration kPairPatience = absl::Minutes(2);
// The server says nothing a client could wait for: the client tries until it listens.
constexpr absl::Duration kServerStart = absl::Seconds(10);
constexpr absl::Duration kBetweenTries = absl::Milliseconds(50);

}  // namespace

absl::StatusOr<std::string> RunProgramPair(std::vector<std::string> arguments,
                                           const std::string& host,
                                           const std::map<std::string, std::string>& environment) {
  SHOAL_ASSIGN_OR_RETURN(const int port, FreePort());
  arguments.insert(arguments.end(), {"-p", fmt::format("{}", port)});
  SHOAL_ASSIGN_OR_RETURN(RunningProgram server, RunningProgram::Start(arguments, environment));
  arguments.push_back(host);
  for (const absl::Time deadline = RealClock().Now() + kServerStart;;) {
    RealClock().SleepFor(kBetweenTries);
    absl::StatusOr<std::string> output = RunProgram(arguments, kPairPatience, environment);
    if (output.ok()) {
      return output;
    }
    if (!server.Running()) {
      SHOAL_RETURN_IF_ERROR(server.Finish(kBetweenTries).status());
    }
    if (absl::IsDeadlineExceeded(output.status()) || RealClock().Now() > deadline) {
      return output;
    }
  }
}

}  // namespace shoal::transport

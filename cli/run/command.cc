#include "cli/run/command.h"

#include "CLI/CLI.hpp"
#include "nlohmann/json.hpp"

namespace shoal::cli {

ExitCode ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return ExitCode::kDone;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kResourceExhausted:
      return ExitCode::kUsage;
    default:
      return ExitCode::kFailure;
  }
}

void PrintJson(std::ostream& out, const nlohmann::json& value) {
  // Text from files may be no valid UTF-8; a replacement character beats an exception.
  out << value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n" << std::flush;
}

CLI::App* AddCommand(CLI::App& parent, const std::string& name, const std::string& description,
                     const std::string& example) {
  CLI::App* command = parent.add_subcommand(name, description);
  command->footer("Example:\n  " + example);
  return command;
}

}  // namespace shoal::cli

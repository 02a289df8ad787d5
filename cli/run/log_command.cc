#include "cli/run/log_command.h"

#include <optional>
#include <utility>

#include "core/base/file.h"
#include "core/base/status.h"
#include "server/coordinator/record/run_record.h"

namespace shoal::cli {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(30);  // for it to read to the end

}  // namespace

absl::StatusOr<std::unique_ptr<LogCommand>> LogCommand::Start(
    const std::string& command, const std::string& checkpoint_directory,
    const std::string& log_folder) {
  SHOAL_RETURN_IF_ERROR(CreateDirectories(log_folder));
  const std::string log_file = log_folder + "/log-command.log";
  SHOAL_ASSIGN_OR_RETURN(
      std::unique_ptr<Subprocess> child,
      Subprocess::Start(
          {.name = "log.command",
           .arguments = {"sh", "-c", command},
           .environment = {{"SHOAL_RECORD",
                            fmt::format("{}/{}", server::RecordFolder(checkpoint_directory),
                                        server::kRecordFile)}},
           .log_file = log_file}));
  return std::unique_ptr<LogCommand>(new LogCommand(std::move(child), log_file));
}

absl::Status LogCommand::Finish() {
  const std::optional<ChildEnd> end = child_->Wait(kLimit);
  if (!end.has_value()) {
    child_->Kill();
    return DeadlineExceeded("log.command did not end and is stopped; see {}", log_file_);
  }
  return end->clean() ? absl::OkStatus() : Internal("{}; see {}", Describe(*end), log_file_);
}

}  // namespace shoal::cli

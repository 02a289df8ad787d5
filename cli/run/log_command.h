// log.command: a program of the user's beside the run, which reads the run's record as it grows and
// ends by itself at the line that ends the run.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/process/subprocess.h"

namespace shoal::cli {

// From the main thread alone, as its child.
class LogCommand {
 public:
  // Runs `command` in a shell, with the record of `checkpoint_directory` in SHOAL_RECORD. Its
  // output goes to log-command.log in `log_folder`, which is made if need be.
  static absl::StatusOr<std::unique_ptr<LogCommand>> Start(const std::string& command,
                                                           const std::string& checkpoint_directory,
                                                           const std::string& log_folder);
  // Waits for its end, not for long. An error says how it ended otherwise, and where its output is.
  absl::Status Finish();

 private:
  LogCommand(std::unique_ptr<Subprocess> child, std::string log_file)
      : child_(std::move(child)), log_file_(std::move(log_file)) {}
  const std::unique_ptr<Subprocess> child_;
  const std::string log_file_;
};

}  // namespace shoal::cli

// How `shoal status` finds a cluster that `shoal train` runs on this machine: beside its logs, in
// <checkpoint directory>/logs, lie the coordinator's address and the token of the run while it
// lasts. The token's file is new each time and for its owner alone (mode 0600).
//
// A killed `shoal train` leaves both behind; the next run in that folder replaces them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/rpc/token.h"

namespace shoal::cli {

// Where a run with this checkpoint directory keeps logs and these two files.
std::string LogFolderOf(const std::string& checkpoint_directory);

std::string AddressFileIn(const std::string& log_folder);
std::string TokenFileIn(const std::string& log_folder);

// The two files; they are removed with this object.
class RunAccess {
 public:
  // Replaces what an earlier run left. The folder must exist.
  static absl::StatusOr<std::unique_ptr<RunAccess>> Publish(const std::string& log_folder,
                                                            const std::string& address,
                                                            const rpc::Token& token);
  ~RunAccess();
  RunAccess(const RunAccess&) = delete;
  RunAccess& operator=(const RunAccess&) = delete;

 private:
  explicit RunAccess(std::string log_folder) : log_folder_(std::move(log_folder)) {}
  const std::string log_folder_;
};

// The address that a run in this checkpoint directory has published. NotFound, with what to do
// instead, where none does.
absl::StatusOr<std::string> FindRun(const std::string& checkpoint_directory);

}  // namespace shoal::cli

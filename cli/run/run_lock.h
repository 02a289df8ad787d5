// One `shoal train` at a time in a checkpoint directory: two would overwrite each other's
// checkpoints, logs and token. The lock is the kernel's, on an open file, so it ends with the
// process however that ends; the file itself stays, but for a run that has left nothing.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/file.h"

namespace shoal::cli {

class RunLock {
 public:
  // Makes the directory if need be. FailedPrecondition names the process that holds the lock.
  static absl::StatusOr<RunLock> Take(const std::string& checkpoint_directory);

  // Of a directory that Take made, and in which there is nothing but the file: takes both away.
  void RemoveIfUnused();

 private:
  RunLock(UniqueFd fd, std::string made) : fd_(std::move(fd)), made_(std::move(made)) {}
  UniqueFd fd_;
  std::string made_;  // the directory, where Take made it
};

}  // namespace shoal::cli

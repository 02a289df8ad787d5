// One `shoal train` at a time in a checkpoint directory: two would overwrite each other's
// checkpoints, logs and token. The lock is the kernel's, on an open file, so it ends with the
// process however that ends; the file itself stays.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "core/base/file.h"

namespace shoal::cli {

class RunLock {
 public:
  // Makes the directory if need be. FailedPrecondition names the process that holds the lock.
  static absl::StatusOr<RunLock> Take(const std::string& checkpoint_directory);

 private:
  explicit RunLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

}  // namespace shoal::cli

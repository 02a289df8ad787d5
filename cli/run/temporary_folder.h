// A folder under the system's temporary one, for its owner alone.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace shoal::cli {

// The destructor removes the folder with its content.
class TemporaryFolder {
 public:
  static absl::StatusOr<std::unique_ptr<TemporaryFolder>> Create();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace shoal::cli

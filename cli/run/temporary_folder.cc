#include "cli/run/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "core/base/status.h"

namespace shoal::cli {

namespace fs = std::filesystem;

absl::StatusOr<std::unique_ptr<TemporaryFolder>> TemporaryFolder::Create() {
  std::error_code error;
  std::string name = (fs::temp_directory_path(error) / "shoal-XXXXXX").string();
  if (error || mkdtemp(name.data()) == nullptr) {
    return ErrnoToStatus(errno, fmt::format("making a temporary folder {}", name));
  }
  return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(std::move(name)));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace shoal::cli

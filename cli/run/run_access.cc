#include "cli/run/run_access.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal::cli {
namespace {

constexpr int64_t kMaximumAddressFile = 512;

absl::Status FileError(std::string_view command, const std::string& path) {
  const int error_number = errno;
  return ErrnoToStatus(error_number, fmt::format("cannot {} {}", command, path));
}

// Never through a file or link that is there already, which others might read: WriteFileAtomically
// would leave the mode to the umask.
absl::Status WriteForOwnerAlone(const std::string& path, const std::string& line) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return FileError("replace", path);
  }
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return FileError("create", path);
  }
  const ssize_t written = write(fd.get(), line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) {
    return written < 0 ? FileError("write", path) : ResourceExhausted("{}: short write", path);
  }
  return absl::OkStatus();
}

}  // namespace

std::string LogFolderOf(const std::string& checkpoint_directory) {
  return checkpoint_directory + "/logs";
}
std::string AddressFileIn(const std::string& log_folder) {
  return log_folder + "/coordinator.address";
}
std::string TokenFileIn(const std::string& log_folder) { return log_folder + "/coordinator.token"; }

absl::StatusOr<std::unique_ptr<RunAccess>> RunAccess::Publish(const std::string& log_folder,
                                                              const std::string& address,
                                                              const rpc::Token& token) {
  std::unique_ptr<RunAccess> access(new RunAccess(log_folder));
  // The address last: who finds it finds the token that goes with it.
  SHOAL_RETURN_IF_ERROR(WriteForOwnerAlone(TokenFileIn(log_folder), token.secret() + "\n"));
  SHOAL_RETURN_IF_ERROR(WriteFileAtomically(AddressFileIn(log_folder), address + "\n"));
  return access;
}

RunAccess::~RunAccess() {
  unlink(AddressFileIn(log_folder_).c_str());
  unlink(TokenFileIn(log_folder_).c_str());
}

absl::StatusOr<std::string> FindRun(const std::string& checkpoint_directory) {
  const std::string path = AddressFileIn(LogFolderOf(checkpoint_directory));
  auto text = ReadFile(path, kMaximumAddressFile);
  if (absl::IsNotFound(text.status())) {
    return NotFound(
        "no shoal train runs a local cluster with checkpoints in {} (there is no {}); for a "
        "cluster "
        "started otherwise give --coordinator HOST:PORT and --token-file",
        checkpoint_directory, path);
  }
  SHOAL_RETURN_IF_ERROR(text.status());
  const std::string address = text->substr(0, text->find('\n'));
  if (address.empty()) {
    return DataLoss("{} holds no address", path);
  }
  return address;
}

}  // namespace shoal::cli

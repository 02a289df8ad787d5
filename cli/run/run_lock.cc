#include "cli/run/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <iterator>
#include <utility>

#include "core/base/status.h"

namespace shoal::cli {
namespace {

// The process number that the holder wrote, or "unknown".
std::string HolderIn(const std::string& path) {
  const auto text = ReadFile(path, 64);
  const std::string holder = text.ok() ? text->substr(0, text->find('\n')) : "";
  const bool is_number =
      !holder.empty() && holder.find_first_not_of("0123456789") == std::string::npos;
  return is_number ? holder : "unknown";
}

// False: who had the lock has taken the file away.
bool IsStill(const std::string& path, int fd) {
  struct stat at = {};
  struct stat of = {};
  return stat(path.c_str(), &at) == 0 && fstat(fd, &of) == 0 && at.st_dev == of.st_dev &&
         at.st_ino == of.st_ino;
}

}  // namespace

absl::StatusOr<RunLock> RunLock::Take(const std::string& checkpoint_directory) {
  std::error_code ignored;
  const bool made = !std::filesystem::exists(checkpoint_directory, ignored);
  SHOAL_RETURN_IF_ERROR(CreateDirectories(checkpoint_directory));
  const std::string path = checkpoint_directory + "/lock";
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    const int error_number = errno;
    return ErrnoToStatus(error_number, fmt::format("cannot open {}", path));
  }
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return FailedPrecondition(
          "another shoal train (process {}) is using {}: wait for it, or name another "
          "checkpoint.directory",
          HolderIn(path), checkpoint_directory);
    }
    const int error_number = errno;
    return ErrnoToStatus(error_number, fmt::format("cannot lock {}", path));
  }
  if (!IsStill(path, fd.get())) {
    return FailedPrecondition("{} has just been given up by another shoal train: start it again",
                              checkpoint_directory);
  }
  const std::string holder = std::to_string(getpid()) + "\n";
  if (ftruncate(fd.get(), 0) != 0 ||
      pwrite(fd.get(), holder.data(), holder.size(), 0) != static_cast<ssize_t>(holder.size())) {
    const int error_number = errno;
    return ErrnoToStatus(error_number, fmt::format("cannot write {}", path));
  }
  return RunLock(std::move(fd), made ? checkpoint_directory : "");
}

void RunLock::RemoveIfUnused() {
  if (made_.empty()) {
    return;
  }
  std::error_code error;
  const auto entries = std::filesystem::directory_iterator(made_, error);
  if (!error && std::distance(entries, std::filesystem::directory_iterator()) == 1) {
    std::filesystem::remove(made_ + "/lock", error);
    std::filesystem::remove(made_, error);
  }
}

}  // namespace shoal::cli

#include "core/rpc/certificates/secret_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal {
namespace {

absl::Status SecretFileError(std::string_view verb, const std::string& path) {
  const int error_number = errno;
  return ErrnoToStatus(error_number, fmt::format("cannot {} {}", verb, path));
}

}  // namespace

absl::Status WriteSecretFile(const std::string& path, std::string_view contents) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) {
    return SecretFileError("replace", path);
  }
  const UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) {
    return SecretFileError("create", path);
  }
  const ssize_t written = write(fd.get(), contents.data(), contents.size());
  if (written != static_cast<ssize_t>(contents.size())) {
    return written < 0 ? SecretFileError("write", path)
                       : ResourceExhausted("{}: short write", path);
  }
  return absl::OkStatus();
}

}  // namespace shoal

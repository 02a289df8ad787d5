#include "core/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/base/random.h"
#include "core/base/status.h"

namespace shoal {
namespace {

absl::Status PathError(std::string_view verb, const std::string& path) {
  const int error_number = errno;
  return ErrnoToStatus(error_number, fmt::format("cannot {} {}", verb, path));
}

absl::Status WriteAll(int fd, std::string_view contents, const std::string& path) {
  while (!contents.empty()) {
    const ssize_t written = write(fd, contents.data(), contents.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return PathError("write", path);
    }
    contents.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) {
    close(fd_);
  }
  fd_ = fd;
}

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return PathError("open", path);
  }
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) {
    return PathError("stat", path);
  }
  if (S_ISDIR(info.st_mode)) {
    return InvalidArgument("{} is a folder, a file was expected", path);
  }
  if (info.st_size > max_bytes) {
    return InvalidArgument("{} has {} bytes, more than the {} that are read of such a file", path,
                           info.st_size, max_bytes);
  }
  std::string contents;
  char buffer[1 << 16];
  while (true) {
    const ssize_t got = read(fd.get(), buffer, sizeof(buffer));
    if (got < 0) {
      if (errno == EINTR) {
        continue;
      }
      return PathError("read", path);
    }
    if (got == 0) {
      return contents;
    }
    contents.append(buffer, static_cast<size_t>(got));
    if (static_cast<int64_t>(contents.size()) > max_bytes) {
      return InvalidArgument("{} has more than the {} bytes that are read of such a file", path,
                             max_bytes);
    }
  }
}

absl::Status WriteFileAtomically(const std::string& path, std::string_view contents) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, SecureToken());
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return PathError("create", temporary);
  }
  absl::Status status = WriteAll(fd.get(), contents, temporary);
  if (status.ok() && fsync(fd.get()) != 0) {
    status = PathError("sync", temporary);
  }
  fd.Reset();
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = PathError("rename to", path);
  }
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return SyncDirectory(folder.empty() ? "." : folder);
}

absl::Status CreateDirectories(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return ErrnoToStatus(error.value(), fmt::format("cannot create folder {}", path));
  }
  return absl::OkStatus();
}

absl::Status SyncDirectory(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) {
    return PathError("open folder", path);
  }
  // Some file systems cannot sync folders; nothing more can be done then.
  if (fsync(fd.get()) != 0 && errno != EINVAL) {
    return PathError("sync folder", path);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return PathError("open", path);
  }
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) {
    return PathError("stat", path);
  }
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument("{} is not a regular file", path);
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (data == MAP_FAILED) {
      return PathError("map", path);
    }
  }
  return std::unique_ptr<MappedFile>(
      new MappedFile(path, static_cast<const std::byte*>(data), size));
}

void ReleasePages(std::span<const std::byte> part_of_mapped_file) {
  // The pages at both ends are whole pages of the same map.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(part_of_mapped_file.data());
  const uintptr_t begin = address / page * page;
  if (!part_of_mapped_file.empty()) {
    // Only advice: pages that stay cost memory, nothing else.
    madvise(reinterpret_cast<void*>(begin), address - begin + part_of_mapped_file.size(),
            MADV_DONTNEED);
  }
}

MappedFile::~MappedFile() {
  if (size_ > 0) {
    munmap(const_cast<std::byte*>(data_), size_);
  }
}

}  // namespace shoal

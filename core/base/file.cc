#include "core/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "core/base/check.h"
#include "core/base/random.h"
#include "core/base/status.h"

namespace shoal {
namespace {

absl::Status PathError(std::string_view verb, const std::string& path) {
  const int error_number = errno;
  return ErrnoToStatus(error_number, fmt::format("cannot {} {}", verb, path));
}

constexpr size_t kBufferBytes = size_t{1} << 20;  // of a StreamedFile: one write call per MiB

// Reads what there is at `offset`, 0 bytes at the end of the file.
absl::StatusOr<size_t> ReadSome(int fd, const std::string& path, int64_t offset,
                                std::span<std::byte> out) {
  while (true) {
    const ssize_t got = pread(fd, out.data(), out.size(), offset);
    if (got >= 0) {
      return static_cast<size_t>(got);
    }
    if (errno != EINTR) {
      const int error_number = errno;
      return ErrnoToStatus(error_number, fmt::format("cannot read {} at byte {} (a failing disk "
                                                     "or a stale mount?)",
                                                     path, offset));
    }
  }
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
  SHOAL_ASSIGN_OR_RETURN(const auto file, StreamedFile::Create(path));
  SHOAL_RETURN_IF_ERROR(file->Append(std::as_bytes(std::span(contents))));
  return file->Finish();
}

absl::Status CreateDirectories(const std::string& path) {
  std::error_code error;
  std::vector<std::filesystem::path> missing;
  for (std::filesystem::path at = path; !at.empty() && !std::filesystem::exists(at, error);
       at = at.parent_path()) {
    missing.push_back(at);
  }
  std::filesystem::create_directories(path, error);
  if (error) {
    return ErrnoToStatus(error.value(), fmt::format("cannot create folder {}", path));
  }
  for (const std::filesystem::path& made : missing) {
    const std::string parent = made.parent_path().string();
    SHOAL_RETURN_IF_ERROR(SyncDirectory(parent.empty() ? "." : parent));
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

absl::StatusOr<InputFile> InputFile::Open(const std::string& path) {
  InputFile file;
  file.path_ = path;
  file.fd_.Reset(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.fd_.valid()) {
    return PathError("open", path);
  }
  struct stat info {};
  if (fstat(file.fd_.get(), &info) != 0) {
    return PathError("stat", path);
  }
  if (!S_ISREG(info.st_mode)) {
    return InvalidArgument("{} is not a regular file", path);
  }
  file.size_ = info.st_size;
  return file;
}

absl::Status InputFile::Read(int64_t offset, std::span<std::byte> out) const {
  if (offset < 0 || offset > size_ - std::ssize(out)) {
    return OutOfRange("{}: there are no {} bytes at byte {} of {}", path_, out.size(), offset,
                      size_);
  }
  while (!out.empty()) {
    SHOAL_ASSIGN_OR_RETURN(const size_t got, ReadSome(fd_.get(), path_, offset, out));
    if (got == 0) {
      return DataLoss(
          "{} was cut short while it was open: byte {} of {} is gone; put a whole copy in its "
          "place "
          "and start again",
          path_, offset, size_);
    }
    out = out.subspan(got);
    offset += static_cast<int64_t>(got);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StreamedFile>> StreamedFile::Create(const std::string& path) {
  std::string temporary = fmt::format("{}.{}.tmp", path, SecureToken());
  UniqueFd fd(open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return PathError("create", path);
  }
  return std::unique_ptr<StreamedFile>(new StreamedFile(path, std::move(temporary), std::move(fd)));
}

StreamedFile::StreamedFile(std::string path, std::string temporary, UniqueFd fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(std::move(fd)) {}

StreamedFile::~StreamedFile() {
  if (!finished_) {
    unlink(temporary_.c_str());
  }
}

absl::Status StreamedFile::Append(std::span<const std::byte> bytes) {
  SHOAL_CHECK(!finished_);
  size_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const size_t piece = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(piece));
    bytes = bytes.subspan(piece);
    if (buffer_.size() == kBufferBytes) {
      SHOAL_RETURN_IF_ERROR(Flush());
    }
  }
  return absl::OkStatus();
}

absl::Status StreamedFile::Flush() {
  std::span<const std::byte> rest = buffer_;
  while (!rest.empty()) {
    const ssize_t written = write(fd_.get(), rest.data(), rest.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return PathError("write", temporary_);
    }
    rest = rest.subspan(static_cast<size_t>(written));
  }
  buffer_.clear();
  return absl::OkStatus();
}

absl::StatusOr<size_t> StreamedFile::ReadAt(int64_t offset, std::span<std::byte> out) {
  SHOAL_ASSIGN_OR_RETURN(const size_t got, ReadSome(fd_.get(), temporary_, offset, out));
  if (got == 0) {
    return DataLoss("{} is shorter than what was written to it", temporary_);
  }
  return got;
}

absl::Status StreamedFile::Replay(
    const std::function<absl::Status(std::span<const std::byte>)>& take) {
  SHOAL_RETURN_IF_ERROR(Flush());
  std::vector<std::byte> piece(kBufferBytes);
  for (int64_t offset = 0; offset < size_;) {
    SHOAL_ASSIGN_OR_RETURN(const size_t got, ReadAt(offset, piece));
    SHOAL_RETURN_IF_ERROR(take(std::span<const std::byte>(piece).first(got)));
    offset += static_cast<int64_t>(got);
  }
  return absl::OkStatus();
}

absl::Status StreamedFile::Finish() {
  SHOAL_RETURN_IF_ERROR(Flush());
  if (fsync(fd_.get()) != 0) {
    return PathError("sync", temporary_);
  }
  fd_.Reset();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return PathError("rename to", path_);
  }
  finished_ = true;
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  return SyncDirectory(folder.empty() ? "." : folder);
}

}  // namespace shoal

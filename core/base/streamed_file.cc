#include "core/base/streamed_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "core/base/check.h"
#include "core/base/random.h"
#include "core/base/status.h"

namespace shoal::formats {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;  // one write call per MiB

absl::Status PathError(std::string_view verb, const std::string& path) {
  const int error_number = errno;
  return ErrnoToStatus(error_number, fmt::format("cannot {} {}", verb, path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<StreamedFile>> StreamedFile::Create(const std::string& path) {
  std::string temporary = fmt::format("{}.{}.tmp", path, SecureToken());
  UniqueFd fd(open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return PathError("create", temporary);
  }
  return std::unique_ptr<StreamedFile>(new StreamedFile(path, std::move(temporary), std::move(fd)));
}

StreamedFile::StreamedFile(std::string path, std::string temporary, UniqueFd fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(std::move(fd)) {
  buffer_.reserve(kBufferBytes);
}

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
  while (true) {
    const ssize_t got = pread(fd_.get(), out.data(), out.size(), offset);
    if (got > 0) {
      return static_cast<size_t>(got);
    }
    if (got == 0) {
      return DataLoss("{} is shorter than what was written to it", temporary_);
    }
    if (errno != EINTR) {
      return PathError("read", temporary_);
    }
  }
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

}  // namespace shoal::formats

// Files: whole reads and writes, reads by range, atomic replacement. Every error names the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shoal {

// Reads the whole file; refuses one larger than max_bytes.
absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes = int64_t{1} << 30);

// Writes to a temporary file next to `path`, syncs it, renames it over `path` and syncs the folder:
// after a crash there is either the old file or the new one.
absl::Status WriteFileAtomically(const std::string& path, std::string_view contents);

// mkdir -p, so that a power cut leaves the folders that it made.
absl::Status CreateDirectories(const std::string& path);
absl::Status SyncDirectory(const std::string& path);

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  ~UniqueFd() { Reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      Reset(other.Release());
    }
    return *this;
  }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

// A regular file, open for reading by range. Thread-safe. Reads copy, so that a failing disk, a
// stale mount or somebody who cuts the file short is a status and not the end of the process.
class InputFile {
 public:
  static absl::StatusOr<InputFile> Open(const std::string& path);
  InputFile() = default;

  const std::string& path() const { return path_; }
  // In bytes, when it was opened.
  int64_t size() const { return size_; }
  // Fills `out` from byte `offset` on.
  absl::Status Read(int64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  UniqueFd fd_;
  int64_t size_ = 0;
};

// A file written in pieces that appears under its name only when complete: bytes go to a temporary
// file next to it, which Finish syncs and renames. Without Finish nothing remains. Not thread-safe.
class StreamedFile {
 public:
  static absl::StatusOr<std::unique_ptr<StreamedFile>> Create(const std::string& path);
  ~StreamedFile();
  StreamedFile(const StreamedFile&) = delete;
  StreamedFile& operator=(const StreamedFile&) = delete;

  absl::Status Append(std::span<const std::byte> bytes);
  // Bytes appended so far.
  int64_t size() const { return size_; }
  // Passes every byte appended so far to `take`, in pieces; for a file that becomes part of
  // another.
  absl::Status Replay(const std::function<absl::Status(std::span<const std::byte> piece)>& take);
  absl::Status Finish();

 private:
  StreamedFile(std::string path, std::string temporary, UniqueFd fd);
  absl::Status Flush();
  absl::StatusOr<size_t> ReadAt(int64_t offset, std::span<std::byte> out);

  const std::string path_;
  const std::string temporary_;
  UniqueFd fd_;
  std::vector<std::byte> buffer_;
  int64_t size_ = 0;
  bool finished_ = false;
};

}  // namespace shoal

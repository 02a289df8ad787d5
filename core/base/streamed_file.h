// A file written in pieces that appears under its name only when complete: bytes go to a temporary
// file next to it, which Finish syncs and renames. Without Finish nothing remains. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/file.h"

namespace shoal::formats {

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
  template <typename Take>
  absl::Status Replay(Take take);
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

template <typename Take>
absl::Status StreamedFile::Replay(Take take) {
  if (absl::Status status = Flush(); !status.ok()) {
    return status;
  }
  std::vector<std::byte> piece(size_t{1} << 20);
  for (int64_t offset = 0; offset < size_;) {
    absl::StatusOr<size_t> got = ReadAt(offset, piece);
    if (!got.ok()) {
      return got.status();
    }
    if (absl::Status status = take(std::span<const std::byte>(piece).first(*got)); !status.ok()) {
      return status;
    }
    offset += static_cast<int64_t>(*got);
  }
  return absl::OkStatus();
}

}  // namespace shoal::formats

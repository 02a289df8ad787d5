// Reads a file from its beginning to its end, unpacked where it is packed by gzip or zstd, which
// its first bytes say, not its name. Takes memory for a block or two, whatever the file's size.
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace shoal::worker {

class UnpackedFile {
 public:
  // InvalidArgument for a folder.
  static absl::StatusOr<std::unique_ptr<UnpackedFile>> Open(const std::string& path);

  virtual ~UnpackedFile() = default;

  // Reads at most so many bytes; 0 at the end. DataLoss where what is packed is damaged or cut
  // short.
  virtual absl::StatusOr<size_t> Read(char* to, size_t most) = 0;

  // Bytes of the file as it lies on the disk that were read; of a pipe 0.
  virtual int64_t bytes_read() const = 0;
};

}  // namespace shoal::worker

// Scalars of a run as TensorBoard reads them: an event file is a sequence of records, each a
// length, a checksum of the length, a tensorboard.Event and a checksum of that (TFRecord:
// little-endian, masked CRC-32C).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/file.h"
#include "proto/tensorboard.pb.h"

namespace shoal::server {

// Not thread-safe; calls may block on the disk.
class TensorBoardLog {
 public:
  // Makes a file of its own in the folder. Steps from `step` on in earlier ones no longer count.
  static absl::StatusOr<TensorBoardLog> Open(const std::string& folder, int64_t step, double time);

  // `time` in seconds since the Unix epoch.
  absl::Status Append(int64_t step, double time,
                      const std::vector<std::pair<std::string, double>>& scalars);

 private:
  TensorBoardLog(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  absl::Status Write(const tensorboard::Event& event);

  std::string path_;
  UniqueFd fd_;
};

// The bytes of one record of an event file.
std::string TensorBoardRecord(const std::string& data);

}  // namespace shoal::server

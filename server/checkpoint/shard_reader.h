// Reads the records of a shard, each whole and compared with its hash in the memory that it is
// given out from. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/file.h"
#include "server/checkpoint/shard_file.h"

namespace shoal::server {

class ShardReader {
 public:
  // Opens <folder>/<entry.file> and checks its size, header and records against the manifest's
  // entry and step.
  static absl::StatusOr<std::unique_ptr<ShardReader>> Open(const std::string& folder,
                                                           const ShardEntry& entry, int64_t step);

  const std::vector<ShardRecord>& records() const { return table_.records; }
  // Fills `out`, as long as the record, with a record's data. DataLoss if it does not match its
  // hash.
  absl::Status Read(const ShardRecord& record, std::span<std::byte> out) const;
  // The same without keeping the data.
  absl::Status Verify(const ShardRecord& record) const;

 private:
  ShardReader(InputFile file, ShardTable table)
      : file_(std::move(file)), table_(std::move(table)) {}
  // Reads a record piece by piece, each to where `place` says.
  absl::Status ReadPieces(
      const ShardRecord& record,
      const std::function<std::span<std::byte>(int64_t offset, size_t bytes)>& place) const;

  const InputFile file_;
  const ShardTable table_;
};

}  // namespace shoal::server

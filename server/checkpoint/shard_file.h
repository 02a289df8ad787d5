// One server's part of a checkpoint: the state of its partitions in one file.
// docs/checkpoint-format.md shows the bytes.
//
//   header   64 bytes: magic "SHOALCKP", format version, step, number of records
//   records  64 bytes each: partition, unit, offset and count in the unit, place in the file,
//            XXH3-64 of its data
//   data     per record: fp32 master weights, then as many moments as its optimizer keeps; of a
//            partition that is frozen only the weights
//
// The manifest holds the hash of header and records, and the records hold the hashes of the data,
// so one number vouches for the file. Reading treats the file as hostile: every field is checked
// before it is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/model/partition.h"

namespace shoal::server {

// The arrays kept for each partition, each `count` floats.
enum class Section { kMaster = 0, kFirstMoment = 1, kSecondMoment = 2 };
inline constexpr int kSections = 3;

struct ShardEntry {
  std::string file;  // relative to the checkpoint's folder
  int64_t bytes = 0;
  uint64_t hash = 0;  // of header and records
  std::vector<int> partitions;

  bool operator==(const ShardEntry&) const = default;
};

// Writes a shard record by record. For one thread. The file has its final name from the start; it
// counts only once a manifest names it.
class ShardWriter {
 public:
  static absl::StatusOr<std::unique_ptr<ShardWriter>> Create(
      const std::string& folder, int server, int64_t step,
      const std::vector<plan::PartitionSpec>& partitions);
  ~ShardWriter();

  // Adds the next partition, in the order announced; each span has the partition's count, and those
  // of moments that it does not have none.
  absl::Status Add(std::span<const float> master, std::span<const float> first_moment,
                   std::span<const float> second_moment);
  // Call after adding all announced partitions: writes header and records, and syncs the file.
  absl::StatusOr<ShardEntry> Finish();

 private:
  struct State;
  explicit ShardWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct ShardRecord {
  plan::PartitionSpec partition;
  int64_t place = 0;  // byte offset of the data
  uint64_t hash = 0;

  int64_t bytes() const { return partition.moved_bytes(); }
};

// Holds header and records.
struct ShardTable {
  int64_t step = 0;
  uint64_t hash = 0;  // of header and records as stored in the file
  std::vector<ShardRecord> records;
};
// Both parse the first bytes of a file of `file_bytes`, and check all that they read against that
// size; `name` is for messages. ShardTableBytes returns the size of header and records and needs
// kShardHeaderBytes; ParseShard needs header and records.
inline constexpr int64_t kShardHeaderBytes = 64;
absl::StatusOr<int64_t> ShardTableBytes(std::span<const std::byte> head, int64_t file_bytes,
                                        const std::string& name);
absl::StatusOr<ShardTable> ParseShard(std::span<const std::byte> head, int64_t file_bytes,
                                      const std::string& name);

}  // namespace shoal::server

#include "server/checkpoint/shard_file.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/file.h"
#include "core/base/status.h"

namespace shoal::server {
namespace {

constexpr uint64_t kMagic = 0x504B434C414F4853;  // "SHOALCKP"
constexpr uint32_t kFormatOfAllTrained = 1;      // every record has two moments
constexpr uint32_t kFormatOfFrozen = 2;          // or none, being frozen
constexpr uint32_t kFormatVersion = 3;           // or as many as it says
constexpr int kMostMoments = kSections - 1;
constexpr uint64_t kMaxRecords = 1 << 24;
constexpr int64_t kDataAlignment = 64;

struct HeaderBytes {
  uint64_t magic;
  uint32_t version;
  uint32_t server;
  int64_t step;
  uint64_t records;
  uint64_t reserved[4];
};
static_assert(sizeof(HeaderBytes) == kShardHeaderBytes);

struct RecordBytes {
  int32_t partition;
  int32_t unit;
  int64_t offset;
  int64_t count;
  int64_t place;
  uint64_t hash;
  uint64_t frozen;          // 1: has no moments
  uint64_t moments_lacked;  // of two, where it is not frozen
  uint64_t reserved;
};
static_assert(sizeof(RecordBytes) == 64);

uint64_t MomentsLacked(const plan::PartitionSpec& partition) {
  return partition.frozen ? 0 : static_cast<uint64_t>(kMostMoments - partition.moments.arrays);
}

// The oldest that can say what these partitions have, for releases that know no later one.
uint32_t FormatOf(const std::vector<plan::PartitionSpec>& partitions) {
  if (std::ranges::any_of(partitions, [](const auto& p) { return MomentsLacked(p) > 0; })) {
    return kFormatVersion;
  }
  return std::ranges::any_of(partitions, &plan::PartitionSpec::frozen) ? kFormatOfFrozen
                                                                       : kFormatOfAllTrained;
}

// What the record says of the moments of a trained partition; nothing if that cannot be.
std::optional<plan::PartitionSpec> SpecOf(const RecordBytes& record, uint32_t version) {
  if (record.frozen > (version >= kFormatOfFrozen ? 1 : 0) ||
      record.moments_lacked > (version >= kFormatVersion ? uint64_t{kMostMoments} : 0)) {
    return std::nullopt;
  }
  return plan::PartitionSpec{
      .id = record.partition,
      .unit = record.unit,
      .offset = record.offset,
      .count = record.count,
      .frozen = record.frozen != 0,
      .moments = {.arrays = kMostMoments - static_cast<int>(record.moments_lacked)}};
}

absl::Status WriteAt(int fd, const void* data, size_t size, int64_t offset,
                     const std::string& path) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = pwrite(fd, bytes, size, offset);
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return ErrnoToStatus(errno, fmt::format("cannot write {}", path));
    }
    bytes += written;
    size -= static_cast<size_t>(written);
    offset += written;
  }
  return absl::OkStatus();
}

uint64_t HashOf(std::span<const float> master, std::span<const float> first,
                std::span<const float> second) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  SHOAL_CHECK(state != nullptr);
  XXH3_64bits_reset(state.get());
  for (const auto& section : {master, first, second}) {
    XXH3_64bits_update(state.get(), section.data(), section.size_bytes());
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace

struct ShardWriter::State {
  std::string path;
  std::string file;
  UniqueFd fd;
  HeaderBytes header{};
  std::vector<RecordBytes> records;
  size_t next = 0;
  int64_t end = 0;
};

ShardWriter::ShardWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
ShardWriter::~ShardWriter() = default;

absl::StatusOr<std::unique_ptr<ShardWriter>> ShardWriter::Create(
    const std::string& folder, int server, int64_t step,
    const std::vector<plan::PartitionSpec>& partitions) {
  auto state = std::make_unique<State>();
  state->file = fmt::format("server-{:04d}.shard", server);
  state->path = fmt::format("{}/{}", folder, state->file);
  state->fd.Reset(open(state->path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!state->fd.valid()) {
    return ErrnoToStatus(errno, fmt::format("cannot create {}", state->path));
  }
  state->header = {.magic = kMagic,
                   .version = FormatOf(partitions),
                   .server = static_cast<uint32_t>(server),
                   .step = step,
                   .records = partitions.size()};
  state->end = static_cast<int64_t>(sizeof(HeaderBytes) + partitions.size() * sizeof(RecordBytes));
  for (const plan::PartitionSpec& partition : partitions) {
    state->records.push_back({.partition = partition.id,
                              .unit = partition.unit,
                              .offset = partition.offset,
                              .count = partition.count,
                              .place = state->end,
                              .frozen = partition.frozen ? uint64_t{1} : 0,
                              .moments_lacked = MomentsLacked(partition)});
    state->end = RoundUp(state->end + partition.moved_bytes(), kDataAlignment);
  }
  return std::unique_ptr<ShardWriter>(new ShardWriter(std::move(state)));
}

absl::Status ShardWriter::Add(std::span<const float> master, std::span<const float> first_moment,
                              std::span<const float> second_moment) {
  SHOAL_CHECK(state_->next < state_->records.size());
  RecordBytes& record = state_->records[state_->next++];
  int64_t place = record.place;
  const int64_t arrays = record.frozen != 0 ? 0 : kMostMoments - record.moments_lacked;
  SHOAL_CHECK(std::ssize(master) == record.count &&
              std::ssize(first_moment) == (arrays > 0 ? record.count : 0) &&
              std::ssize(second_moment) == (arrays > 1 ? record.count : 0));
  for (const auto& section : {master, first_moment, second_moment}) {
    SHOAL_RETURN_IF_ERROR(
        WriteAt(state_->fd.get(), section.data(), section.size_bytes(), place, state_->path));
    place += static_cast<int64_t>(section.size_bytes());
  }
  record.hash = HashOf(master, first_moment, second_moment);
  return absl::OkStatus();
}

absl::StatusOr<ShardEntry> ShardWriter::Finish() {
  SHOAL_CHECK(state_->next == state_->records.size());
  std::string table(sizeof(HeaderBytes) + state_->records.size() * sizeof(RecordBytes), '\0');
  std::memcpy(table.data(), &state_->header, sizeof(HeaderBytes));
  if (!state_->records.empty()) {
    std::memcpy(table.data() + sizeof(HeaderBytes), state_->records.data(),
                state_->records.size() * sizeof(RecordBytes));
  }
  SHOAL_RETURN_IF_ERROR(WriteAt(state_->fd.get(), table.data(), table.size(), 0, state_->path));
  if (ftruncate(state_->fd.get(), state_->end) != 0 || fsync(state_->fd.get()) != 0) {
    return ErrnoToStatus(errno, fmt::format("cannot sync {}", state_->path));
  }
  ShardEntry entry{
      .file = state_->file, .bytes = state_->end, .hash = XXH3_64bits(table.data(), table.size())};
  for (const RecordBytes& record : state_->records) {
    entry.partitions.push_back(record.partition);
  }
  return entry;
}

absl::StatusOr<int64_t> ShardTableBytes(std::span<const std::byte> head, int64_t file_bytes,
                                        const std::string& name) {
  HeaderBytes header;
  if (head.size() < sizeof(header) || file_bytes < kShardHeaderBytes) {
    return DataLoss("{}: {} bytes are too few for a checkpoint shard", name, file_bytes);
  }
  std::memcpy(&header, head.data(), sizeof(header));
  if (header.magic != kMagic) {
    return DataLoss("{}: not a checkpoint shard", name);
  }
  if (header.version < 1 || header.version > kFormatVersion) {
    return DataLoss("{}: format version {}, this program reads those up to {}", name,
                    header.version, kFormatVersion);
  }
  if (header.records > kMaxRecords ||
      header.records * sizeof(RecordBytes) > static_cast<uint64_t>(file_bytes) - sizeof(header)) {
    return DataLoss("{}: {} records do not fit into {} bytes", name, header.records, file_bytes);
  }
  return static_cast<int64_t>(sizeof(header) + header.records * sizeof(RecordBytes));
}

absl::StatusOr<ShardTable> ParseShard(std::span<const std::byte> head, int64_t file_bytes,
                                      const std::string& name) {
  SHOAL_ASSIGN_OR_RETURN(const int64_t table_bytes, ShardTableBytes(head, file_bytes, name));
  if (std::ssize(head) < table_bytes) {
    return DataLoss("{}: header and records take {} bytes, there are {}", name, table_bytes,
                    head.size());
  }
  HeaderBytes header;
  std::memcpy(&header, head.data(), sizeof(header));
  ShardTable table{.step = header.step,
                   .hash = XXH3_64bits(head.data(), static_cast<size_t>(table_bytes))};
  for (uint64_t i = 0; i < header.records; ++i) {
    RecordBytes record;
    std::memcpy(&record, head.data() + sizeof(header) + i * sizeof(record), sizeof(record));
    const std::optional<plan::PartitionSpec> partition = SpecOf(record, header.version);
    const bool counts_fit = partition.has_value() && record.partition >= 0 && record.unit >= 0 &&
                            record.offset >= 0 && record.count > 0 &&
                            record.count <= file_bytes / 4 &&
                            partition->moved_bytes() <= file_bytes;
    if (!counts_fit || record.place < table_bytes || record.place % 4 != 0 ||
        record.place > file_bytes - partition->moved_bytes()) {
      return DataLoss("{}: record {} (partition {}) does not lie within the file", name, i,
                      record.partition);
    }
    table.records.push_back({.partition = *partition, .place = record.place, .hash = record.hash});
  }
  return table;
}

}  // namespace shoal::server

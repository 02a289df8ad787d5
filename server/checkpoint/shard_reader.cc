#include "server/checkpoint/shard_reader.h"

// Built for this machine, not for the oldest: twice as fast as the library's.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::server {
namespace {

// Read at a time, and hashed while it is in a core's cache.
constexpr int64_t kPieceBytes = 256 << 10;

}  // namespace

absl::StatusOr<std::unique_ptr<ShardReader>> ShardReader::Open(const std::string& folder,
                                                               const ShardEntry& entry,
                                                               int64_t step) {
  const std::string path = fmt::format("{}/{}", folder, entry.file);
  SHOAL_ASSIGN_OR_RETURN(InputFile file, InputFile::Open(path));
  if (file.size() != entry.bytes) {
    return DataLoss("{}: damaged: {} bytes, the manifest says {}", path, file.size(), entry.bytes);
  }
  std::vector<std::byte> head(static_cast<size_t>(std::min(file.size(), kShardHeaderBytes)));
  SHOAL_RETURN_IF_ERROR(file.Read(0, head));
  SHOAL_ASSIGN_OR_RETURN(const int64_t table_bytes, ShardTableBytes(head, file.size(), path));
  head.resize(static_cast<size_t>(table_bytes));
  SHOAL_RETURN_IF_ERROR(file.Read(0, head));
  SHOAL_ASSIGN_OR_RETURN(ShardTable table, ParseShard(head, file.size(), path));
  if (table.hash != entry.hash) {
    return DataLoss("{}: damaged: header and records do not match the manifest", path);
  }
  if (table.step != step) {
    return DataLoss("{}: is of step {}, the manifest of step {}", path, table.step, step);
  }
  return std::unique_ptr<ShardReader>(new ShardReader(std::move(file), std::move(table)));
}

absl::Status ShardReader::ReadPieces(
    const ShardRecord& record,
    const std::function<std::span<std::byte>(int64_t offset, size_t bytes)>& place) const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  SHOAL_CHECK(state != nullptr);
  XXH3_64bits_reset(state.get());
  for (int64_t at = 0; at < record.bytes(); at += kPieceBytes) {
    const std::span<std::byte> piece =
        place(at, static_cast<size_t>(std::min(kPieceBytes, record.bytes() - at)));
    SHOAL_RETURN_IF_ERROR(file_.Read(record.place + at, piece));
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
  }
  if (XXH3_64bits_digest(state.get()) != record.hash) {
    return DataLoss("{}: damaged: the data of partition {} does not match its hash", file_.path(),
                    record.partition.id);
  }
  return absl::OkStatus();
}

absl::Status ShardReader::Read(const ShardRecord& record, std::span<std::byte> out) const {
  SHOAL_CHECK(std::ssize(out) == record.bytes());
  return ReadPieces(record, [&](int64_t offset, size_t bytes) {
    return out.subspan(static_cast<size_t>(offset), bytes);
  });
}

absl::Status ShardReader::Verify(const ShardRecord& record) const {
  std::vector<std::byte> buffer(kPieceBytes);
  return ReadPieces(record, [&](int64_t, size_t bytes) { return std::span(buffer).first(bytes); });
}

}  // namespace shoal::server

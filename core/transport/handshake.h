// What the handshakes of all transports share: the envelope of offers and answers, the description
// of exposed regions, and the checks of posted operations against it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/transport/byte_codec.h"
#include "core/transport/transport.h"

namespace shoal::transport {

// Raised whenever the bytes of a handshake or of a data connection change meaning.
inline constexpr uint32_t kTransportProtocolVersion = 3;

// The most regions that one side of a connection may expose: as many as fit a handshake message and
// its file descriptors.
inline constexpr size_t kMaxExposedRegions = 128;

// The most doorbells that may wait at a peer, per connection. Beyond it the poster refuses more
// until the peer polls.
inline constexpr int64_t kMaxWaitingDoorbells = 4096;

inline constexpr int64_t kMaxOutstandingOperations = 16384;

// Wraps an offer or answer: magic, kind, version, transport, then the transport's own body.
std::string SealOffer(std::string_view transport, std::string_view body);
std::string SealAnswer(std::string_view transport, std::string_view body);
// Returns the body. Errors name `peer` and distinguish a wrong transport, another version and
// malformed bytes.
absl::StatusOr<std::string> OpenOffer(std::string_view transport, std::string_view peer,
                                      std::string_view bytes);
absl::StatusOr<std::string> OpenAnswer(std::string_view transport, std::string_view peer,
                                       std::string_view bytes);

// An exposed region as the peer sees it.
struct RemoteRegion {
  int64_t bytes = 0;
  bool writable = false;
};
void WriteRegions(std::span<const RemoteRegion> regions, ByteWriter& writer);
// Fails on too many regions or impossible sizes.
absl::StatusOr<std::vector<RemoteRegion>> ReadRegions(std::string_view peer, ByteReader& reader);
std::vector<RemoteRegion> DescribeRegions(const std::vector<std::shared_ptr<Region>>& exposed);

// Checks that the queue is set, bounds are positive and within limits, and that there are at most
// kMaxExposedRegions regions, none of them kLocal or null.
absl::Status CheckConnectionOptions(const ConnectionOptions& options);

// Checks a post, for every transport: bounds and access of each operation on the peer's regions,
// and that its local memory is `known`, that is, within a region of the transport. Empty operations
// touch nothing and skip both. Templates, since a small operation costs little more than its
// checks.
template <typename KnowsMemory>
absl::Status CheckReads(const std::string& peer, std::span<const RemoteRegion> regions,
                        std::span<const ReadOperation> operations, const KnowsMemory& known);
template <typename KnowsMemory>
absl::Status CheckWrites(const std::string& peer, std::span<const RemoteRegion> regions,
                         std::span<const WriteOperation> operations, const KnowsMemory& known);
// Returns how many of them ring.
int64_t CountRings(std::span<const WriteOperation> operations);

// Tells the side that dialled why it was refused.
std::string EncodeRefusal(const absl::Status& status);
absl::Status DecodeRefusal(std::string_view body);

// Compares in a time that does not depend on where the secrets differ.
bool SameSecret(std::string_view a, std::string_view b);

// Helpers of CheckReads and CheckWrites.
inline bool IsWithin(std::span<const RemoteRegion> regions, int region, int64_t offset,
                     size_t size) {
  if (static_cast<size_t>(region) >= regions.size()) {
    return false;
  }
  const int64_t bytes = regions[static_cast<size_t>(region)].bytes;
  return offset >= 0 && offset <= bytes && size <= static_cast<uint64_t>(bytes - offset);
}
absl::Status NotWithin(const std::string& peer, std::span<const RemoteRegion> regions, int region,
                       int64_t offset, size_t size);
absl::Status NotWritable(const std::string& peer, int region);
absl::Status NotOfThisTransport(const std::string& peer, std::string_view what);

template <typename KnowsMemory>
absl::Status CheckReads(const std::string& peer, std::span<const RemoteRegion> regions,
                        std::span<const ReadOperation> operations, const KnowsMemory& known) {
  for (const ReadOperation& operation : operations) {
    if (operation.into.empty()) {
      continue;
    }
    if (!IsWithin(regions, operation.region, operation.offset, operation.into.size()))
        [[unlikely]] {
      return NotWithin(peer, regions, operation.region, operation.offset, operation.into.size());
    }
    if (!known(operation.into)) [[unlikely]] {
      return NotOfThisTransport(peer, "the destination of a read");
    }
  }
  return absl::OkStatus();
}

template <typename KnowsMemory>
absl::Status CheckWrites(const std::string& peer, std::span<const RemoteRegion> regions,
                         std::span<const WriteOperation> operations, const KnowsMemory& known) {
  for (const WriteOperation& operation : operations) {
    const int region = operation.region;
    if (operation.from.empty()) {
      continue;
    }
    if (!IsWithin(regions, region, operation.offset, operation.from.size())) [[unlikely]] {
      return NotWithin(peer, regions, region, operation.offset, operation.from.size());
    }
    if (!regions[static_cast<size_t>(region)].writable) [[unlikely]] {
      return NotWritable(peer, region);
    }
    if (!known(operation.from)) [[unlikely]] {
      return NotOfThisTransport(peer, "the source of a write");
    }
  }
  return absl::OkStatus();
}

}  // namespace shoal::transport

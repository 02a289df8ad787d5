#include "core/transport/handshake.h"

#include <algorithm>

#include "core/base/status.h"

namespace shoal::transport {
namespace {

constexpr uint32_t kOfferMagic = 0x4F4C4853;   // "SHLO"
constexpr uint32_t kAnswerMagic = 0x414C4853;  // "SHLA"
constexpr int64_t kMaxRegionBytes = int64_t{1} << 46;

std::string Seal(uint32_t magic, std::string_view transport, std::string_view body) {
  ByteWriter writer;
  writer.U32(magic);
  writer.U32(kTransportProtocolVersion);
  writer.String(transport);
  writer.String(body);
  return writer.bytes();
}

absl::StatusOr<std::string> Open(uint32_t magic, std::string_view what, std::string_view transport,
                                 std::string_view peer, std::string_view bytes) {
  if (bytes.size() > kMaxHandshakeBytes) {
    return InvalidArgument("{}: {} of {} bytes is larger than {}", peer, what, bytes.size(),
                           kMaxHandshakeBytes);
  }
  ByteReader reader(bytes);
  if (reader.U32() != magic) {
    return InvalidArgument("{}: not a transport {}", peer, what);
  }
  if (const uint32_t version = reader.U32(); reader.ok() && version != kTransportProtocolVersion) {
    return FailedPrecondition(
        "{}: {} has transport protocol version {}, this side has {}; run the same release on both "
        "sides",
        peer, what, version, kTransportProtocolVersion);
  }
  const std::string name = reader.String();
  if (reader.ok() && name != transport) {
    return InvalidArgument("{}: {} is for another transport, this is '{}'", peer, what, transport);
  }
  std::string body = reader.String();
  if (!reader.complete()) {
    return InvalidArgument("{}: malformed transport {}", peer, what);
  }
  return body;
}

}  // namespace

std::string SealOffer(std::string_view transport, std::string_view body) {
  return Seal(kOfferMagic, transport, body);
}

std::string SealAnswer(std::string_view transport, std::string_view body) {
  return Seal(kAnswerMagic, transport, body);
}

absl::StatusOr<std::string> OpenOffer(std::string_view transport, std::string_view peer,
                                      std::string_view bytes) {
  return Open(kOfferMagic, "offer", transport, peer, bytes);
}

absl::StatusOr<std::string> OpenAnswer(std::string_view transport, std::string_view peer,
                                       std::string_view bytes) {
  return Open(kAnswerMagic, "answer", transport, peer, bytes);
}

void WriteRegions(std::span<const RemoteRegion> regions, ByteWriter& writer) {
  writer.U32(static_cast<uint32_t>(regions.size()));
  for (const RemoteRegion& region : regions) {
    writer.I64(region.bytes);
    writer.U32(region.writable ? 1 : 0);
  }
}

absl::StatusOr<std::vector<RemoteRegion>> ReadRegions(std::string_view peer, ByteReader& reader) {
  const uint32_t count = reader.U32();
  if (!reader.ok() || count > kMaxExposedRegions) {
    return InvalidArgument("{}: malformed list of exposed regions", peer);
  }
  std::vector<RemoteRegion> regions(count);
  for (RemoteRegion& region : regions) {
    region.bytes = reader.I64();
    const uint32_t writable = reader.U32();
    if (!reader.ok() || region.bytes <= 0 || region.bytes > kMaxRegionBytes || writable > 1) {
      return InvalidArgument("{}: malformed exposed region", peer);
    }
    region.writable = writable == 1;
  }
  return regions;
}

std::vector<RemoteRegion> DescribeRegions(const std::vector<std::shared_ptr<Region>>& exposed) {
  std::vector<RemoteRegion> regions;
  regions.reserve(exposed.size());
  for (const auto& region : exposed) {
    regions.push_back(
        {static_cast<int64_t>(region->bytes().size()), region->access() == Access::kRemoteWrite});
  }
  return regions;
}

absl::Status CheckConnectionOptions(const ConnectionOptions& options) {
  if (options.queue == nullptr) {
    return InvalidArgument("{}: a connection needs an event queue", options.peer);
  }
  if (options.max_outstanding <= 0 || options.max_outstanding > kMaxOutstandingOperations) {
    return InvalidArgument("{}: max_outstanding is {}, must be 1 to {}", options.peer,
                           options.max_outstanding, kMaxOutstandingOperations);
  }
  if (options.handshake_timeout <= absl::ZeroDuration()) {
    return InvalidArgument("{}: handshake_timeout must be positive", options.peer);
  }
  if (options.exposed.size() > kMaxExposedRegions) {
    return InvalidArgument("{}: {} exposed regions, at most {} fit", options.peer,
                           options.exposed.size(), kMaxExposedRegions);
  }
  for (size_t i = 0; i < options.exposed.size(); ++i) {
    if (options.exposed[i] == nullptr || options.exposed[i]->access() == Access::kLocal) {
      return InvalidArgument(
          "{}: exposed region {} is for local use alone; allocate it with remote access",
          options.peer, i);
    }
  }
  return absl::OkStatus();
}

absl::Status NotWithin(const std::string& peer, std::span<const RemoteRegion> regions, int region,
                       int64_t offset, size_t size) {
  if (region < 0 || static_cast<size_t>(region) >= regions.size()) {
    return OutOfRange("{}: no region {}; it exposes {}", peer, region, regions.size());
  }
  return OutOfRange("{}: {} bytes at {} are outside region {} of {} bytes", peer, size, offset,
                    region, regions[static_cast<size_t>(region)].bytes);
}

absl::Status NotWritable(const std::string& peer, int region) {
  return PermissionDenied("{}: region {} may only be read", peer, region);
}

absl::Status NotOfThisTransport(const std::string& peer, std::string_view what) {
  return InvalidArgument("{}: {} is not in a region of this transport", peer, what);
}

int64_t CountRings(std::span<const WriteOperation> operations) {
  return std::ranges::count_if(operations, &WriteOperation::ring);
}

std::string EncodeRefusal(const absl::Status& status) {
  ByteWriter writer;
  writer.U32(static_cast<uint32_t>(status.code()));
  writer.String(Message(status));
  return writer.bytes();
}

absl::Status DecodeRefusal(std::string_view body) {
  ByteReader reader(body);
  const auto code = static_cast<absl::StatusCode>(reader.U32());
  const std::string text = reader.String();
  if (!reader.complete() || code == absl::StatusCode::kOk) {
    return Unavailable("refused without a reason");
  }
  return absl::Status(code, text);
}

bool SameSecret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) {
    return false;
  }
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return difference == 0;
}

}  // namespace shoal::transport

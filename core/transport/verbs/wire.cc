#include "core/transport/verbs/wire.h"

#include <algorithm>

#include "core/base/status.h"
#include "xxhash.h"

namespace shoal::transport {
namespace {

constexpr size_t kMostGids = 8;
constexpr size_t kMostChunks = 512;
constexpr size_t kHashBytes = sizeof(uint64_t);

void WriteGid(const Gid& gid, ByteWriter& writer) {
  writer.String({reinterpret_cast<const char*>(gid.data()), gid.size()});
}

bool ReadGid(ByteReader& reader, Gid& gid) {
  const std::string bytes = reader.String();
  if (bytes.size() != gid.size()) {
    return false;
  }
  std::ranges::copy(bytes, gid.begin());
  return true;
}

void WriteEnd(const QueuePairEnd& end, ByteWriter& writer) {
  writer.U32(end.number);
  writer.U32(end.packet_sequence);
  writer.U32(end.lid);
  writer.U32(static_cast<uint32_t>(end.mtu_bytes));
  writer.U32(static_cast<uint32_t>(end.reads_as_target));
}

bool ReadEnd(ByteReader& reader, QueuePairEnd& end) {
  constexpr uint32_t kLargest24 = 0xFFFFFF;
  end.number = reader.U32();
  end.packet_sequence = reader.U32();
  const uint32_t lid = reader.U32();
  const uint32_t mtu = reader.U32();
  const uint32_t reads = reader.U32();
  end.lid = static_cast<uint16_t>(lid);
  end.mtu_bytes = static_cast<int>(mtu);
  end.reads_as_target = static_cast<int>(reads);
  return reader.ok() && end.number <= kLargest24 && end.packet_sequence <= kLargest24 &&
         lid <= 0xFFFF && mtu >= 256 && mtu <= 65536 && reads <= 255;
}

uint64_t BindingHash(std::string_view nonce, std::string_view body) {
  return XXH3_64bits_withSeed(body.data(), body.size(), XXH3_64bits(nonce.data(), nonce.size()));
}

absl::Status Malformed(std::string_view peer, std::string_view what) {
  return InvalidArgument("{}: malformed verbs {}", peer, what);
}

bool FitDoorbells(int64_t doorbells) { return doorbells >= 1 && doorbells <= kMaxWaitingDoorbells; }

void WriteMemory(const RemoteMemory& memory, ByteWriter& writer) {
  WriteRegions(memory.regions, writer);
  for (const RemoteMemory::Chunks& region : memory.chunks) {
    writer.I64(region.bytes);
    writer.U32(static_cast<uint32_t>(region.chunks.size()));
    for (const RemoteChunk& chunk : region.chunks) {
      writer.U64(chunk.address);
      writer.U32(chunk.key);
    }
  }
}

absl::StatusOr<RemoteMemory> ReadMemory(std::string_view peer, ByteReader& reader) {
  RemoteMemory memory;
  SHOAL_ASSIGN_OR_RETURN(memory.regions, ReadRegions(peer, reader));
  memory.chunks.resize(memory.regions.size());
  for (size_t i = 0; i < memory.regions.size(); ++i) {
    RemoteMemory::Chunks& region = memory.chunks[i];
    region.bytes = reader.I64();
    const uint32_t count = reader.U32();
    // The chunks must cover the region exactly: operations are addressed by them without checking
    // the region's size.
    if (!reader.ok() || region.bytes <= 0 || count == 0 || count > kMostChunks ||
        (memory.regions[i].bytes - 1) / region.bytes + 1 != static_cast<int64_t>(count)) {
      return Malformed(peer, "list of regions");
    }
    for (uint32_t k = 0; k < count; ++k) {
      RemoteChunk chunk;
      chunk.address = reader.U64();
      chunk.key = reader.U32();
      region.chunks.push_back(chunk);
    }
  }
  return memory;
}

ByteWriter BeginMessage(VerbsMessage type) {
  ByteWriter writer;
  writer.U32(kVerbsVersion);
  writer.U32(static_cast<uint32_t>(type));
  return writer;
}

}  // namespace

std::string EncodeOffer(const VerbsOffer& offer) {
  ByteWriter writer;
  writer.U32(kVerbsVersion);
  writer.String(offer.nonce);
  writer.I64(offer.doorbells);
  writer.U32(static_cast<uint32_t>(offer.rails.size()));
  for (const OfferedRail& rail : offer.rails) {
    writer.U32(rail.rail.link_layer == LinkLayer::kEthernet ? 1 : 0);
    WriteEnd(rail.end, writer);
    writer.U32(static_cast<uint32_t>(rail.rail.gids.size()));
    for (const Gid& gid : rail.rail.gids) {
      WriteGid(gid, writer);
    }
  }
  return writer.bytes();
}

absl::StatusOr<VerbsOffer> DecodeOffer(std::string_view peer, std::string_view body) {
  ByteReader reader(body);
  const uint32_t version = reader.U32();
  if (reader.ok() && version != kVerbsVersion) {
    return FailedPrecondition("{}: speaks version {} of the verbs handshake, this side {}", peer,
                              version, kVerbsVersion);
  }
  VerbsOffer offer;
  offer.nonce = reader.String();
  offer.doorbells = reader.I64();
  const uint32_t rails = reader.U32();
  if (!reader.ok() || rails == 0 || rails > kMaxRails || !FitDoorbells(offer.doorbells)) {
    return Malformed(peer, "offer");
  }
  for (uint32_t i = 0; i < rails; ++i) {
    OfferedRail rail;
    rail.rail.link_layer = reader.U32() == 1 ? LinkLayer::kEthernet : LinkLayer::kInfiniBand;
    if (!ReadEnd(reader, rail.end)) {
      return Malformed(peer, "offer");
    }
    rail.rail.lid = rail.end.lid;
    rail.rail.mtu_bytes = rail.end.mtu_bytes;
    const uint32_t gids = reader.U32();
    if (!reader.ok() || gids == 0 || gids > kMostGids) {
      return Malformed(peer, "offer");
    }
    for (uint32_t k = 0; k < gids; ++k) {
      if (!ReadGid(reader, rail.rail.gids.emplace_back())) {
        return Malformed(peer, "offer");
      }
    }
    offer.rails.push_back(std::move(rail));
  }
  if (!reader.complete()) {
    return Malformed(peer, "offer");
  }
  return offer;
}

std::string EncodeAnswer(const VerbsAnswer& answer, const std::string& nonce) {
  ByteWriter writer;
  writer.U32(kVerbsVersion);
  writer.I64(answer.doorbells);
  writer.U32(static_cast<uint32_t>(answer.rails.size()));
  for (const AnsweredRail& rail : answer.rails) {
    writer.U32(static_cast<uint32_t>(rail.connector_rail));
    writer.U32(static_cast<uint32_t>(rail.connector_gid));
    WriteEnd(rail.end, writer);
    WriteGid(rail.end.gid, writer);
  }
  writer.String(answer.secret);
  writer.U64(BindingHash(nonce, writer.bytes()));
  return writer.bytes();
}

absl::StatusOr<VerbsAnswer> DecodeAnswer(std::string_view peer, const std::string& nonce,
                                         std::string_view body) {
  if (body.size() < kHashBytes) {
    return Malformed(peer, "answer");
  }
  const std::string_view bound = body.substr(0, body.size() - kHashBytes);
  ByteReader hash(body.substr(bound.size()));
  if (hash.U64() != BindingHash(nonce, bound)) {
    return InvalidArgument("{}: the answer is damaged, or belongs to another offer", peer);
  }
  ByteReader reader(bound);
  const uint32_t version = reader.U32();
  VerbsAnswer answer;
  answer.doorbells = reader.I64();
  const uint32_t rails = reader.U32();
  if (!reader.ok() || version != kVerbsVersion || rails == 0 || rails > kMaxRails ||
      !FitDoorbells(answer.doorbells)) {
    return Malformed(peer, "answer");
  }
  for (uint32_t i = 0; i < rails; ++i) {
    AnsweredRail rail;
    rail.connector_rail = static_cast<int>(reader.U32());
    rail.connector_gid = static_cast<int>(reader.U32());
    if (!ReadEnd(reader, rail.end) || !ReadGid(reader, rail.end.gid)) {
      return Malformed(peer, "answer");
    }
    answer.rails.push_back(rail);
  }
  answer.secret = reader.String();
  if (!reader.complete()) {
    return Malformed(peer, "answer");
  }
  return answer;
}

std::string EncodeHello(const std::string& secret, const RemoteMemory& memory) {
  ByteWriter writer = BeginMessage(VerbsMessage::kHello);
  writer.String(secret);
  WriteMemory(memory, writer);
  return writer.bytes();
}

std::string EncodeWelcome(const RemoteMemory& memory) {
  ByteWriter writer = BeginMessage(VerbsMessage::kWelcome);
  WriteMemory(memory, writer);
  return writer.bytes();
}

std::string EncodeCredit(uint64_t polled) {
  ByteWriter writer = BeginMessage(VerbsMessage::kCredit);
  writer.U64(polled);
  return writer.bytes();
}

std::string EncodeGoodbye() { return BeginMessage(VerbsMessage::kGoodbye).bytes(); }

absl::StatusOr<ReceivedMessage> DecodeMessage(std::string_view peer, std::string_view bytes) {
  ByteReader reader(bytes);
  const uint32_t version = reader.U32();
  ReceivedMessage message;
  message.type = static_cast<VerbsMessage>(reader.U32());
  if (!reader.ok() || version != kVerbsVersion) {
    return Malformed(peer, "message");
  }
  switch (message.type) {
    case VerbsMessage::kHello:
      message.secret = reader.String();
      [[fallthrough]];
    case VerbsMessage::kWelcome: {
      SHOAL_ASSIGN_OR_RETURN(message.memory, ReadMemory(peer, reader));
      break;
    }
    case VerbsMessage::kCredit:
      message.polled = reader.U64();
      break;
    case VerbsMessage::kGoodbye:
      break;
    default:
      return Malformed(peer, "message");
  }
  if (!reader.complete()) {
    return Malformed(peer, "message");
  }
  return message;
}

}  // namespace shoal::transport

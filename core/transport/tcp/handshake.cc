// The payloads of Hello, Welcome and Refusal.
#include "core/transport/handshake.h"

#include "core/base/status.h"
#include "core/transport/tcp/acceptor.h"

namespace shoal::transport {
namespace {

void WritePeer(const TcpPeer& self, ByteWriter& writer) {
  writer.I64(self.max_outstanding);
  WriteRegions(self.regions, writer);
}

absl::StatusOr<TcpPeer> ReadPeer(std::string_view name, ByteReader& reader) {
  TcpPeer peer;
  peer.max_outstanding = reader.I64();
  SHOAL_ASSIGN_OR_RETURN(peer.regions, ReadRegions(name, reader));
  if (!reader.complete() || peer.max_outstanding < 1 ||
      peer.max_outstanding > kMaxOutstandingOperations) {
    return InvalidArgument("{}: malformed tcp handshake", name);
  }
  return peer;
}

}  // namespace

std::string EncodeTcpHello(const TcpHello& hello) {
  ByteWriter writer;
  writer.U32(kTransportProtocolVersion);
  writer.U64(hello.acceptance);
  writer.String(hello.secret);
  WritePeer(hello.peer, writer);
  return writer.bytes();
}

absl::StatusOr<TcpHello> DecodeTcpHello(std::string_view payload) {
  ByteReader reader(payload);
  const uint32_t version = reader.U32();
  if (reader.ok() && version != kTransportProtocolVersion) {
    return FailedPrecondition("it speaks transport protocol version {}, this side {}", version,
                              kTransportProtocolVersion);
  }
  TcpHello hello;
  hello.acceptance = reader.U64();
  hello.secret = reader.String();
  SHOAL_ASSIGN_OR_RETURN(hello.peer, ReadPeer("a dialling process", reader));
  return hello;
}

std::string EncodeTcpWelcome(const TcpPeer& self) {
  ByteWriter writer;
  WritePeer(self, writer);
  return writer.bytes();
}

absl::StatusOr<TcpPeer> DecodeTcpWelcome(std::string_view peer, std::string_view payload) {
  ByteReader reader(payload);
  return ReadPeer(peer, reader);
}

}  // namespace shoal::transport

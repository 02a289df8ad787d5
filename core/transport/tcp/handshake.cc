// The answer, and the payloads of Hello and Welcome.
#include "core/transport/handshake.h"

#include <utility>

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

std::string EncodeTcpAnswer(const TcpAnswer& answer) {
  ByteWriter writer;
  writer.String(answer.host);
  writer.U32(static_cast<uint32_t>(answer.port));
  writer.U64(answer.acceptance);
  writer.U32(answer.encrypt ? 1 : 0);
  writer.String(answer.secret);
  return writer.bytes();
}

absl::StatusOr<TcpAnswer> DecodeTcpAnswer(std::string_view peer, std::string_view body) {
  ByteReader reader(body);
  TcpAnswer answer;
  answer.host = reader.String();
  const uint32_t port = reader.U32();
  answer.port = static_cast<int>(port);
  answer.acceptance = reader.U64();
  const uint32_t encrypt = reader.U32();
  answer.encrypt = encrypt == 1;
  answer.secret = reader.String();
  if (!reader.complete() || port > 65535 || encrypt > 1 ||
      answer.secret.size() != kTcpSecretBytes) {
    return InvalidArgument("{}: malformed transport answer", peer);
  }
  return answer;
}

std::string ProofOf(const TcpAnswer& answer) {
  return Hkdf(answer.secret, "", answer.encrypt ? "shoal tcp hello, sealed" : "shoal tcp hello",
              kTcpSecretBytes);
}

std::string EncodeTcpHello(const TcpHello& hello) {
  ByteWriter writer;
  writer.U32(kTransportProtocolVersion);
  writer.U64(hello.acceptance);
  writer.String(hello.proof);
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
  hello.proof = reader.String();
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

TcpSecrets DeriveTcpSecrets(std::string_view secret, std::string_view hello,
                            std::string_view welcome, bool dialled) {
  if (secret.empty()) {
    return {};
  }
  ByteWriter seen;
  seen.String(hello);
  seen.String(welcome);
  TcpSecrets secrets = {
      .send = Hkdf(secret, seen.bytes(), "shoal tcp from who dials", kRecordSecretBytes),
      .receive = Hkdf(secret, seen.bytes(), "shoal tcp to who dials", kRecordSecretBytes)};
  if (!dialled) {
    std::swap(secrets.send, secrets.receive);
  }
  return secrets;
}

}  // namespace shoal::transport

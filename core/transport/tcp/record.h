// What travels on an encrypted connection behind the handshake: the stream of frames, cut into
// records of AES-128-GCM. docs/wire-protocol.md shows a record.
//
// Each direction has a secret of its own, from which a key and a nonce follow for each generation
// of keys. A record's nonce is that one and the record's number under the key; it does not travel.
// So a record that is changed, left out, repeated or moved is none that the receiver opens, and
// nothing of it is used.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/base/bytes.h"
#include "core/transport/tcp/aead.h"

namespace shoal::transport {

enum class TcpRecordKind : uint8_t {
  kFrames = 1,
  kLastOfKey = 2,  // frames too; later records are under the next key
};

// Precedes a record, whose tag vouches for it.
struct TcpRecordHeader {
  uint32_t length = 0;  // of the frames, which the tag follows
  TcpRecordKind kind = TcpRecordKind::kFrames;
  uint8_t reserved[3] = {};
};
static_assert(sizeof(TcpRecordHeader) == 8);

inline constexpr size_t kMaxRecordBytes = 64 * kKiB;  // of frames
inline constexpr size_t kRecordOverhead = sizeof(TcpRecordHeader) + kAeadTagBytes;
// Of records that are made, or come in, at once.
inline constexpr size_t kRecordBufferBytes = 4 * (kMaxRecordBytes + kRecordOverhead);
inline constexpr size_t kRecordSecretBytes = 32;
// A sender takes the next key after so many records, which are 1 TiB; a receiver takes at most
// kMostRecordsOfKey under one.
inline constexpr uint64_t kRecordsOfKey = uint64_t{1} << 24;
inline constexpr uint64_t kMostRecordsOfKey = (uint64_t{1} << 32) - 1;

// What one side of a connection seals and opens with; empty where it is not encrypted.
struct TcpSecrets {
  std::string send;
  std::string receive;

  bool encrypts() const { return !send.empty(); }
};

// The keys of one direction, one after the other.
class RecordKeys {
 public:
  explicit RecordKeys(std::string secret);

  Aead& aead() { return *aead_; }
  uint64_t used() const { return used_; }  // nonces of this key
  Aead::Nonce NextNonce();
  void TakeNextKey();

 private:
  void DeriveKey();

  std::string secret_;
  std::optional<Aead> aead_;
  std::string first_nonce_;
  uint64_t used_ = 0;
};

class RecordSealer {
 public:
  explicit RecordSealer(std::string secret, uint64_t records_of_key = kRecordsOfKey)
      : keys_(std::move(secret)), records_of_key_(records_of_key) {}

  // Makes one record of the parts, which have kMaxRecordBytes at most, and returns its size, which
  // is kRecordOverhead more than theirs.
  size_t Seal(std::span<const iovec> parts, std::byte* record);

 private:
  RecordKeys keys_;
  uint64_t records_of_key_;
};

// Takes received bytes and returns what records hold.
class RecordOpener {
 public:
  explicit RecordOpener(std::string secret);

  // Where bytes that are received go, and how many went there. Ends what Next returned before.
  std::span<std::byte> Room();
  void Received(size_t bytes) { filled_ += bytes; }
  // Returns the frames of the next record; nothing if it is not whole yet. An error is final.
  absl::StatusOr<std::span<const std::byte>> Next();

 private:
  RecordKeys keys_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t opened_ = 0;
  size_t filled_ = 0;
};

}  // namespace shoal::transport

#include "core/transport/tcp/record.h"

#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::transport {
namespace {

std::span<const std::byte> AssociatedData(const TcpRecordHeader& header) {
  return std::as_bytes(std::span(&header, 1));
}

absl::Status CheckHeader(const TcpRecordHeader& header) {
  const bool kind =
      header.kind == TcpRecordKind::kFrames || header.kind == TcpRecordKind::kLastOfKey;
  if (!kind || header.reserved[0] != 0 || header.reserved[1] != 0 || header.reserved[2] != 0) {
    return InvalidArgument("a record of no known kind");
  }
  if (header.length == 0 || header.length > kMaxRecordBytes) {
    return InvalidArgument("a record announces {} bytes, 1 to {} are allowed", header.length,
                           kMaxRecordBytes);
  }
  return absl::OkStatus();
}

}  // namespace

RecordKeys::RecordKeys(std::string secret) : secret_(std::move(secret)) { DeriveKey(); }

void RecordKeys::DeriveKey() {
  const std::string derived = Hkdf(secret_, "", "shoal tcp key", kAeadKeyBytes + kAeadNonceBytes);
  aead_.emplace(std::string_view(derived).substr(0, kAeadKeyBytes));
  first_nonce_ = derived.substr(kAeadKeyBytes);
  used_ = 0;
}

Aead::Nonce RecordKeys::NextNonce() {
  SHOAL_CHECK(used_ < kMostRecordsOfKey);
  Aead::Nonce nonce;
  std::memcpy(nonce.data(), first_nonce_.data(), nonce.size());
  const uint64_t number = used_++;
  for (size_t byte = 0; byte < sizeof number; ++byte) {
    nonce[nonce.size() - 1 - byte] ^= static_cast<unsigned char>(number >> (8 * byte));
  }
  return nonce;
}

void RecordKeys::TakeNextKey() {
  secret_ = Hkdf(secret_, "", "shoal tcp next", kRecordSecretBytes);
  DeriveKey();
}

size_t RecordSealer::Seal(std::span<const iovec> parts, std::byte* record) {
  TcpRecordHeader header;
  for (const iovec& part : parts) {
    header.length += static_cast<uint32_t>(part.iov_len);
  }
  SHOAL_CHECK(header.length > 0 && header.length <= kMaxRecordBytes);
  const bool last = keys_.used() + 1 == records_of_key_;
  header.kind = last ? TcpRecordKind::kLastOfKey : TcpRecordKind::kFrames;
  std::memcpy(record, &header, sizeof header);
  keys_.aead().Seal(keys_.NextNonce(), AssociatedData(header), parts,
                    {record + sizeof header, header.length + kAeadTagBytes});
  if (last) {
    keys_.TakeNextKey();
  }
  return kRecordOverhead + header.length;
}

RecordOpener::RecordOpener(std::string secret)
    : keys_(std::move(secret)),
      buffer_(std::make_unique_for_overwrite<std::byte[]>(kRecordBufferBytes)) {}

std::span<std::byte> RecordOpener::Room() {
  if (opened_ > 0) {
    std::memmove(buffer_.get(), buffer_.get() + opened_, filled_ - opened_);
    filled_ -= std::exchange(opened_, 0);
  }
  return {buffer_.get() + filled_, kRecordBufferBytes - filled_};
}

absl::StatusOr<std::span<const std::byte>> RecordOpener::Next() {
  const std::span<std::byte> here(buffer_.get() + opened_, filled_ - opened_);
  TcpRecordHeader header;
  if (here.size() < sizeof header) {
    return std::span<const std::byte>();
  }
  std::memcpy(&header, here.data(), sizeof header);
  SHOAL_RETURN_IF_ERROR(CheckHeader(header));
  if (here.size() < kRecordOverhead + header.length) {
    return std::span<const std::byte>();
  }
  if (keys_.used() == kMostRecordsOfKey) {
    return InvalidArgument("more than {} records under one key", kMostRecordsOfKey);
  }
  const std::span<std::byte> sealed = here.subspan(sizeof header, header.length + kAeadTagBytes);
  if (!keys_.aead().Open(keys_.NextNonce(), AssociatedData(header), sealed)) {
    return DataLoss(
        "a record is not what was sealed for this connection: it was changed on its way, or comes "
        "from somebody else");
  }
  if (header.kind == TcpRecordKind::kLastOfKey) {
    keys_.TakeNextKey();
  }
  opened_ += kRecordOverhead + header.length;
  return sealed.first(header.length);
}

}  // namespace shoal::transport

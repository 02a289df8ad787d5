// The primitives by their standard vectors, and records as such.
#include "core/transport/tcp/record.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "absl/strings/escaping.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/transport/tcp/frame.h"
#include "core/transport/testing/conformance.h"

namespace shoal::transport {
namespace {

std::string Hex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

std::vector<std::byte> ToBytes(std::string_view text) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(text.data());
  return {bytes, bytes + text.size()};
}
std::string ToString(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Test cases 1 to 4 of the specification of GCM (McGrew, Viega).
TEST(Aead, HasTheStandardsVectors) {
  constexpr char kKey[] = "feffe9928665731c6d6a8f9467308308";
  constexpr char kNonce[] = "cafebabefacedbaddecaf888";
  const std::string text =
      "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
      "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
  const std::string cipher =
      "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e"
      "21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985";
  struct Case {
    std::string key, nonce, associated, text, sealed;
  };
  const std::string zeros(32, '0');
  const std::vector<Case> cases = {
      {zeros, zeros.substr(8), "", "", "58e2fccefa7e3061367f1d57a4e7455a"},
      {zeros, zeros.substr(8), "", zeros,
       "0388dace60b6a392f328c2b971b2fe78ab6e47d42cec13bdf53a67b21257bddf"},
      {kKey, kNonce, "", text, cipher + "4d5c2af327cd64a62cf35abd2ba6fab4"},
      {kKey, kNonce, "feedfacedeadbeeffeedfacedeadbeefabaddad2", text.substr(0, 120),
       cipher.substr(0, 120) + "5bc94fbc3221a5db94fae95ae7121a47"}};
  for (const Case& vector : cases) {
    Aead aead(absl::HexStringToBytes(vector.key));
    Aead::Nonce nonce;
    const std::string nonce_bytes = absl::HexStringToBytes(vector.nonce);
    std::memcpy(nonce.data(), nonce_bytes.data(), nonce.size());
    const std::vector<std::byte> associated = ToBytes(absl::HexStringToBytes(vector.associated));
    std::vector<std::byte> plain = ToBytes(absl::HexStringToBytes(vector.text));
    for (size_t cut = 0; cut <= plain.size(); cut += 7) {  // the parts do not matter
      const iovec parts[] = {{plain.data(), cut}, {plain.data() + cut, plain.size() - cut}};
      std::vector<std::byte> sealed(plain.size() + kAeadTagBytes);
      aead.Seal(nonce, associated, parts, sealed);
      ASSERT_EQ(Hex(ToString(sealed)), vector.sealed);
      ASSERT_TRUE(aead.Open(nonce, associated, sealed));
      ASSERT_EQ(Hex(ToString(sealed).substr(0, plain.size())), vector.text);
    }
  }
}

// Test case 1 of RFC 5869.
TEST(HkdfTest, HasTheStandardsVector) {
  EXPECT_EQ(Hex(Hkdf(std::string(22, '\x0b'), absl::HexStringToBytes("000102030405060708090a0b0c"),
                     absl::HexStringToBytes("f0f1f2f3f4f5f6f7f8f9"), 42)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
}

const std::string kSecret = std::string(kRecordSecretBytes, 'k');

std::string Seal(RecordSealer& sealer, std::string frames) {
  std::string record(frames.size() + kRecordOverhead, '\0');
  const iovec part = {frames.data(), frames.size()};
  EXPECT_EQ(sealer.Seal({&part, 1}, reinterpret_cast<std::byte*>(record.data())), record.size());
  return record;
}

// What records in these bytes hold, or why they are refused.
absl::StatusOr<std::string> Open(RecordOpener& opener, std::string_view bytes) {
  std::string frames;
  while (!bytes.empty()) {
    const std::span<std::byte> room = opener.Room();
    const size_t here = std::min(bytes.size(), room.size());
    std::memcpy(room.data(), bytes.data(), here);
    opener.Received(here);
    bytes.remove_prefix(here);
    while (true) {
      SHOAL_ASSIGN_OR_RETURN(const std::span<const std::byte> next, opener.Next());
      if (next.empty()) {
        break;
      }
      frames += ToString(next);
    }
  }
  return frames;
}

TEST(Records, ComeOutAsTheyWereHoweverTheyArrive) {
  Random random(TestSeed(), 30);
  RecordSealer sealer(kSecret, /*records_of_key=*/3);
  RecordOpener opener(kSecret);
  for (int i = 0; i < 50; ++i) {
    std::string frames;
    std::string bytes;
    for (uint64_t record = random.Below(6); record <= 6; ++record) {
      std::vector<std::byte> part(1 + random.Below(i % 5 == 0 ? kMaxRecordBytes : 300));
      FillRandom(part, random);
      frames += ToString(part);
      bytes += Seal(sealer, ToString(part));
    }
    std::string opened;
    for (size_t at = 0; at < bytes.size();) {
      const size_t piece = 1 + random.Below(i % 2 == 0 ? 100 : 200000);
      const auto next = Open(opener, std::string_view(bytes).substr(at, piece));
      ASSERT_OK(next.status());
      opened += *next;
      at += piece;
    }
    ASSERT_EQ(opened, frames);
  }
}

// Records of the same frames look the same where key and nonce are the same.
TEST(Records, NoNonceIsUsedTwiceWithAKey) {
  constexpr uint64_t kLimit = 4;
  RecordSealer sealer(kSecret, kLimit);
  RecordOpener opener(kSecret);
  const std::string frames(64, 'f');
  std::set<std::string> seen;
  for (uint64_t i = 1; i <= 10 * kLimit; ++i) {
    const std::string record = Seal(sealer, frames);
    EXPECT_EQ(record[4] == static_cast<char>(TcpRecordKind::kLastOfKey), i % kLimit == 0);
    EXPECT_TRUE(seen.insert(record.substr(sizeof(TcpRecordHeader), frames.size())).second)
        << "record " << i;
    const auto opened = Open(opener, record);
    ASSERT_OK(opened.status());
    EXPECT_EQ(*opened, frames);
  }
}

TEST(Records, OneThatIsChangedIsRefused) {
  RecordSealer sealer(kSecret);
  const std::string record = Seal(sealer, std::string(100, 'f'));
  for (size_t at = 0; at < record.size(); ++at) {
    for (const int bit : {0, 7}) {
      std::string changed = record;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      RecordOpener opener(kSecret);
      // Whatever length it announces is there.
      EXPECT_FALSE(Open(opener, changed + std::string(kMaxRecordBytes, 'x')).ok()) << at;
    }
  }
}

TEST(Records, OneOutOfPlaceIsRefused) {
  RecordSealer sealer(kSecret);
  const std::string first = Seal(sealer, "first");
  const std::string second = Seal(sealer, "second");
  for (const std::string& bytes : {second, first + first, second + first}) {
    RecordOpener opener(kSecret);
    EXPECT_TRUE(absl::IsDataLoss(Open(opener, bytes).status()));
  }
  RecordOpener stranger(std::string(kRecordSecretBytes, 'l'));
  EXPECT_TRUE(absl::IsDataLoss(Open(stranger, first).status()));
}

TEST(Records, WhatIsNoneIsRefusedBeforeItIsWhole) {
  const TcpFrame frame = {.type = TcpFrameType::kPing};
  RecordOpener opener(kSecret);
  EXPECT_TRUE(
      absl::IsInvalidArgument(Open(opener, ToString(std::as_bytes(std::span(&frame, 1)))).status()))
      << "a frame in plain text";
  for (const uint32_t length : {uint32_t{0}, static_cast<uint32_t>(kMaxRecordBytes + 1), ~0u}) {
    const TcpRecordHeader header = {.length = length};
    RecordOpener other(kSecret);
    EXPECT_TRUE(absl::IsInvalidArgument(
        Open(other, ToString(std::as_bytes(std::span(&header, 1)))).status()));
  }
}

}  // namespace
}  // namespace shoal::transport

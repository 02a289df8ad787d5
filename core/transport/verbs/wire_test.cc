// The bytes of handshakes and messages: round trips, refusal of malformed ones, and stability of
// their meaning.
#include "core/transport/verbs/wire.h"

#include "core/base/random.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "xxhash.h"

namespace shoal::transport {
namespace {

QueuePairEnd End(uint32_t number) {
  return {.number = number,
          .packet_sequence = 0xABCDEF,
          .lid = 17,
          .gid = {},
          .mtu_bytes = 4096,
          .reads_as_target = 16};
}

VerbsOffer SomeOffer() {
  OfferedRail rail;
  rail.rail.link_layer = LinkLayer::kEthernet;
  rail.rail.gids = {Gid{0xfe, 0x80}, Gid{1, 2, 3}};
  rail.end = End(0x1234);
  return {.nonce = "nonce", .doorbells = 4096, .rails = {rail, rail}};
}

VerbsAnswer SomeAnswer() {
  AnsweredRail rail = {.connector_rail = 1, .connector_gid = 1, .end = End(0x55)};
  rail.end.gid = Gid{9, 8, 7};
  return {.doorbells = 64, .secret = "secret", .rails = {rail}};
}

RemoteMemory SomeMemory() {
  RemoteMemory memory;
  memory.regions = {{10000, false}, {4096, true}};
  memory.chunks = {{.bytes = 4096, .chunks = {{1 << 20, 5}, {2 << 20, 6}, {3 << 20, 7}}},
                   {.bytes = 4096, .chunks = {{4 << 20, 8}}}};
  return memory;
}

std::string Hello() { return EncodeHello("secret", SomeMemory()); }

TEST(VerbsWireTest, OffersSurvive) {
  const auto offer = DecodeOffer("peer", EncodeOffer(SomeOffer()));
  ASSERT_TRUE(offer.ok()) << Describe(offer.status());
  EXPECT_EQ(offer->nonce, "nonce");
  EXPECT_EQ(offer->doorbells, 4096);
  ASSERT_EQ(offer->rails.size(), 2u);
  EXPECT_EQ(offer->rails[1].end.number, 0x1234u);
  EXPECT_EQ(offer->rails[1].end.packet_sequence, 0xABCDEFu);
  EXPECT_EQ(offer->rails[1].rail.lid, 17);
  EXPECT_EQ(offer->rails[1].rail.mtu_bytes, 4096);
  EXPECT_EQ(offer->rails[1].rail.link_layer, LinkLayer::kEthernet);
  EXPECT_EQ(offer->rails[1].rail.gids, (std::vector<Gid>{{0xfe, 0x80}, {1, 2, 3}}));
}

TEST(VerbsWireTest, AnswersSurviveAndAreBoundToTheirOffer) {
  const std::string bytes = EncodeAnswer(SomeAnswer(), "nonce");
  const auto answer = DecodeAnswer("peer", "nonce", bytes);
  ASSERT_TRUE(answer.ok()) << Describe(answer.status());
  EXPECT_EQ(answer->secret, "secret");
  EXPECT_EQ(answer->doorbells, 64);
  ASSERT_EQ(answer->rails.size(), 1u);
  EXPECT_EQ(answer->rails[0].connector_rail, 1);
  EXPECT_EQ(answer->rails[0].end.gid, (Gid{9, 8, 7}));
  EXPECT_FALSE(DecodeAnswer("peer", "another", bytes).ok());
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_FALSE(DecodeAnswer("peer", "nonce", damaged).ok()) << at;
  }
}

TEST(VerbsWireTest, MessagesSurvive) {
  const auto hello = DecodeMessage("peer", Hello());
  ASSERT_TRUE(hello.ok()) << Describe(hello.status());
  EXPECT_EQ(hello->type, VerbsMessage::kHello);
  EXPECT_EQ(hello->secret, "secret");
  ASSERT_EQ(hello->memory.regions.size(), 2u);
  EXPECT_EQ(hello->memory.regions[0].bytes, 10000);
  EXPECT_TRUE(hello->memory.regions[1].writable);
  ASSERT_EQ(hello->memory.chunks[0].chunks.size(), 3u);
  EXPECT_EQ(hello->memory.chunks[0].chunks[2].key, 7u);
  EXPECT_EQ(DecodeMessage("peer", EncodeWelcome(SomeMemory()))->type, VerbsMessage::kWelcome);
  EXPECT_EQ(DecodeMessage("peer", EncodeCredit(77))->polled, 77u);
  EXPECT_EQ(DecodeMessage("peer", EncodeGoodbye())->type, VerbsMessage::kGoodbye);
}

TEST(VerbsWireTest, ChunksHoldTheirRegionExactly) {
  for (const int64_t bytes :
       {int64_t{0}, int64_t{-1}, int64_t{3333}, int64_t{5000}, int64_t{1} << 62}) {
    RemoteMemory memory = SomeMemory();
    memory.chunks[0].bytes = bytes;
    EXPECT_FALSE(DecodeMessage("peer", EncodeWelcome(memory)).ok()) << bytes;
  }
  RemoteMemory memory = SomeMemory();
  memory.chunks[1].chunks.clear();
  EXPECT_FALSE(DecodeMessage("peer", EncodeWelcome(memory)).ok());
}

TEST(VerbsWireTest, MalformedBytesAreRefusedAndNamed) {
  const std::string offer = EncodeOffer(SomeOffer());
  const std::string hello = Hello();
  for (size_t size = 0; size < offer.size(); ++size) {
    EXPECT_FALSE(DecodeOffer("peer", offer.substr(0, size)).ok()) << size;
  }
  for (size_t size = 0; size < hello.size(); ++size) {
    EXPECT_FALSE(DecodeMessage("peer", hello.substr(0, size)).ok()) << size;
  }
  EXPECT_FALSE(DecodeOffer("peer", offer + "x").ok());
  EXPECT_FALSE(DecodeMessage("peer", hello + "x").ok());
  VerbsOffer bad = SomeOffer();
  bad.rails.clear();
  EXPECT_THAT(Message(DecodeOffer("worker-4", EncodeOffer(bad)).status()),
              testing::HasSubstr("worker-4"));
  bad = SomeOffer();
  bad.doorbells = 1 << 20;
  EXPECT_FALSE(DecodeOffer("peer", EncodeOffer(bad)).ok());
  bad = SomeOffer();
  bad.rails[0].end.number = 0x1000000;  // 25 bits
  EXPECT_FALSE(DecodeOffer("peer", EncodeOffer(bad)).ok());
  std::string other_version = offer;
  other_version[0] = 99;
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodeOffer("peer", other_version).status()));
}

// Two builds of the same version must agree on its bytes: raise kVerbsVersion when changing these
// hashes.
TEST(VerbsWireTest, BytesAreThoseOfVersion1) {
  ASSERT_EQ(kVerbsVersion, 1u);
  const auto hash = [](const std::string& bytes) {
    return XXH3_64bits(bytes.data(), bytes.size());
  };
  EXPECT_EQ(hash(EncodeOffer(SomeOffer())), 2508266130301930749u);
  EXPECT_EQ(hash(EncodeAnswer(SomeAnswer(), "nonce")), 2903958720590273294u);
  EXPECT_EQ(hash(Hello()), 14918351092991337187u);
  EXPECT_EQ(hash(EncodeWelcome(SomeMemory())), 16786349769600399390u);
  EXPECT_EQ(hash(EncodeCredit(77)), 810511887903154277u);
  EXPECT_EQ(hash(EncodeGoodbye()), 7894247700560938651u);
}

}  // namespace
}  // namespace shoal::transport

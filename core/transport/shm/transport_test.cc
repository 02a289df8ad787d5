#include "core/transport/shm/transport.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>

#include "core/base/status.h"
#include "core/transport/byte_codec.h"
#include "core/transport/handshake.h"
#include "core/transport/shm/control.h"
#include "core/transport/shm/handshake.h"
#include "core/transport/sleeper.h"
#include "core/transport/testing/conformance.h"

namespace shoal::transport {
namespace {

std::unique_ptr<Transport> Make() { return *CreateShmTransport({}); }

INSTANTIATE_TEST_SUITE_P(Shm, ConformanceTest, testing::Values(TransportUnderTest{"shm", Make}),
                         NameOf);

TEST(ShmTransportTest, APeerOnAnotherHostIsToldToUseTcp) {
  Side side(Make());
  ByteWriter body;
  body.String("00000000-0000-0000-0000-000000000000/4:1");
  const auto acceptance =
      side.transport().Accept(SealOffer("shm", body.bytes()), side.Options({}, "worker-7"));
  EXPECT_TRUE(absl::IsFailedPrecondition(acceptance.status()));
  EXPECT_THAT(Message(acceptance.status()),
              testing::AllOf(testing::HasSubstr("worker-7"), testing::HasSubstr("tcp")));
}

TEST(ShmTransportTest, OffersOfOtherTransportsAndVersionsAreRefusedByName) {
  Side side(Make());
  const auto other = side.transport().Accept(SealOffer("tcp", ""), side.Options());
  EXPECT_TRUE(absl::IsInvalidArgument(other.status()));
  std::string newer = SealOffer("shm", "");
  newer[4] = 99;
  EXPECT_THAT(Message(side.transport().Accept(newer, side.Options()).status()),
              testing::HasSubstr("version 99"));
}

TEST(ShmTransportTest, ReadsAreInline) {
  Side a(Make());
  Side b(Make());
  auto remote = b.Allocate(100, Access::kRemoteRead);
  auto local = a.Allocate(100, Access::kLocal);
  remote->bytes()[5] = std::byte{9};
  Pair pair = Connect(a, a.Options(), b, b.Options({remote}));
  const ReadOperation read = {.id = 1, .region = 0, .offset = 0, .into = local->bytes()};
  ASSERT_TRUE(a.transport().capabilities().inline_reads);
  ASSERT_TRUE(pair.connector->PostReads({&read, 1}).ok());
  EXPECT_EQ(local->bytes()[5], std::byte{9});
}

TEST(SharedMemoryTest, SealsKeepPeersFromWritingShrinkingAndGrowing) {
  auto memory = SharedMemory::Create(8192, /*peers_read_only=*/true);
  ASSERT_TRUE(memory.ok());
  memory->data()[0] = std::byte{1};  // the owner's mapping stays writable
  EXPECT_EQ(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd(), 0), MAP_FAILED);
  EXPECT_NE(ftruncate(memory->fd(), 4096), 0);
  EXPECT_NE(ftruncate(memory->fd(), 16384), 0);
  EXPECT_LT(pwrite(memory->fd(), "x", 1, 0), 0);
  auto mapped = SharedMemory::Map(UniqueFd(dup(memory->fd())), 8192, /*writable=*/false);
  ASSERT_TRUE(mapped.ok()) << Describe(mapped.status());
  EXPECT_EQ(mapped->data()[0], std::byte{1});
  EXPECT_NE(mprotect(mapped->data(), 4096, PROT_READ | PROT_WRITE), 0)
      << "a reader cannot make itself a writer";
  EXPECT_FALSE(SharedMemory::Map(UniqueFd(dup(memory->fd())), 8193, false).ok());
  EXPECT_FALSE(SharedMemory::Map(UniqueFd(dup(memory->fd())), 8192, true).ok());
}

TEST(SharedMemoryTest, WhatIsNotSealedIsNotMapped) {
  UniqueFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_FALSE(SharedMemory::Map(std::move(unsealed), 4096, false).ok());
  EXPECT_FALSE(
      SharedMemory::Map(UniqueFd(open("/dev/zero", O_RDWR | O_CLOEXEC)), 4096, false).ok());
}

TEST(ShmControlTest, ImpossibleCountersBreakTheRingAndTouchNothing) {
  auto memory = SharedMemory::Create(sizeof(ShmControl), false);
  ASSERT_TRUE(memory.ok());
  auto* control = reinterpret_cast<ShmControl*>(memory->data());
  ShmDirection* direction = &control->from_connector;
  DoorbellSender sender(direction);
  DoorbellReceiver receiver(direction);
  EXPECT_EQ(*sender.Room(), kMaxWaitingDoorbells);
  sender.Ring(5);
  EXPECT_EQ(**receiver.Take(), 5u);
  EXPECT_FALSE((*receiver.Take()).has_value());
  Random random(TestSeed());
  for (int i = 0; i < 1000; ++i) {
    const uint64_t value = random.Next();
    std::memcpy(&direction->rung, &value, sizeof value);
    std::memcpy(&direction->taken, &value, sizeof value);
    EXPECT_TRUE(absl::IsDataLoss(sender.Room().status()));
    EXPECT_TRUE(absl::IsDataLoss(receiver.Take().status()));
  }
}

TEST(ShmTransportTest, APeerThatScribblesOnTheRingClosesItsConnectionAlone) {
  // Dials as a hostile peer does: the right secret, then nonsense in shared memory.
  Side b(Make());
  Side a(Make());
  auto region = b.Allocate(64, Access::kRemoteRead);
  Pair good = Connect(a, a.Options(), b, b.Options({region}));
  auto connector = a.transport().Offer(a.Options());
  auto acceptance = b.transport().Accept((*connector)->offer(), b.Options({region}, "worker-9"));
  ASSERT_TRUE(acceptance.ok());
  const std::string body = *OpenAnswer("shm", "b", acceptance->answer);
  ByteReader reader(body);
  (void)reader.String();
  auto socket = DialShm(reader.String());
  ASSERT_TRUE(socket.ok());
  ShmHello hello;
  hello.acceptance = reader.U64();
  hello.secret = reader.String();
  auto page = SharedMemory::Create(kQueuePageBytes, true);
  auto sleeper = Sleeper::Create(nullptr, absl::ZeroDuration());
  const int fds[] = {page->fd(), (*sleeper)->event_fd()};
  ASSERT_TRUE(
      SendShmMessage(socket->get(), ShmMessageType::kHello, EncodeShmHello(hello), fds).ok());
  absl::StatusOr<ShmMessage> welcome = NotFound("none yet");
  while (absl::IsNotFound(welcome.status())) {
    welcome = ReceiveShmMessage(socket->get());
  }
  ASSERT_TRUE(welcome.ok());
  ASSERT_EQ(welcome->type, ShmMessageType::kWelcome);
  auto control = SharedMemory::Map(std::move(welcome->fds[0]), sizeof(ShmControl), true);
  ASSERT_TRUE(control.ok());
  reinterpret_cast<ShmControl*>(control->data())->from_connector.rung = 1u << 31;
  const std::vector<Event> events = b.CollectUntilClosed(acceptance->connection->id());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(absl::IsDataLoss(events[0].status));
  EXPECT_THAT(Message(events[0].status), testing::HasSubstr("worker-9"));
  EXPECT_TRUE(WriteNow(a, *good.connector, {.id = 1, .from = {}, .ring = true}).ok());
  EXPECT_EQ(b.Collect(1).size(), 1u);
}

TEST(ShmTransportTest, NonsenseOnTheSocketHurtsNobody) {
  Side b(Make());
  Side a(Make());
  auto connector = a.transport().Offer(a.Options());
  auto acceptance = b.transport().Accept((*connector)->offer(), b.Options());
  ASSERT_TRUE(acceptance.ok());
  const std::string body = *OpenAnswer("shm", "b", acceptance->answer);
  ByteReader reader(body);
  (void)reader.String();
  const std::string name = reader.String();
  Random random(TestSeed());
  for (int i = 0; i < 50; ++i) {
    auto socket = DialShm(name);
    ASSERT_TRUE(socket.ok());
    std::string noise(random.Below(5000), '\0');
    FillRandom({reinterpret_cast<std::byte*>(noise.data()), noise.size()}, random);
    if (i % 2 == 0) {
      (void)SendShmMessage(socket->get(), ShmMessageType::kHello, noise);
    } else {
      (void)send(socket->get(), noise.data(), noise.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
  }
  EXPECT_TRUE((*connector)->Complete(acceptance->answer).ok());
}

}  // namespace
}  // namespace shoal::transport

#include "core/transport/tcp/transport.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "absl/time/clock.h"
#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/handshake.h"
#include "core/transport/tcp/acceptor.h"
#include "core/transport/tcp/socket.h"
#include "core/transport/testing/conformance.h"
#include "core/transport/testing/guarded_gpu.h"

namespace shoal::transport {
namespace {

std::unique_ptr<Transport> Make() { return *CreateTcpTransport({}); }
std::unique_ptr<Transport> MakeThreaded() { return *CreateTcpTransport({.io_threads = 3}); }
// Small buffers cut every frame into pieces.
std::unique_ptr<Transport> MakeNarrow() {
  return *CreateTcpTransport({.socket_buffer_bytes = 4096});
}

std::unique_ptr<Transport> MakeEncrypted() { return *CreateTcpTransport({.encrypt = true}); }
std::unique_ptr<Transport> MakeEncryptedNarrow() {
  return *CreateTcpTransport({.encrypt = true, .socket_buffer_bytes = 4096});
}

INSTANTIATE_TEST_SUITE_P(
    Tcp, ConformanceTest,
    testing::Values(TransportUnderTest{"tcp", Make}, TransportUnderTest{"threaded", MakeThreaded},
                    TransportUnderTest{"narrow", MakeNarrow},
                    TransportUnderTest{"encrypted", MakeEncrypted},
                    TransportUnderTest{"encrypted_narrow", MakeEncryptedNarrow}),
    NameOf);

absl::Time Soon() { return absl::Now() + absl::Seconds(5); }

TEST(TcpSocketTest, APeerOnThisHostIsNotPaced) {
  const TcpListener listener = *ListenTcp("127.0.0.1", 0, 0);
  const UniqueFd dialled = *DialTcp("127.0.0.1", listener.port, 0, Soon());
  ASSERT_TRUE(TuneTcp(dialled.get(), absl::Seconds(5), 0).ok());
  char name[16] = {};
  socklen_t length = sizeof name - 1;
  ASSERT_EQ(getsockopt(dialled.get(), IPPROTO_TCP, TCP_CONGESTION, name, &length), 0);
  EXPECT_STREQ(name, "reno");
}

TcpAnswer ReadAnswer(const std::string& answer) {
  return *DecodeTcpAnswer("b", *OpenAnswer("tcp", "b", answer));
}

// A peer that speaks the protocol by hand, to send what no Shoal process sends.
class RawPeer {
 public:
  RawPeer(Side& victim, const ConnectionOptions& options) {
    Acceptance acceptance = *victim.transport().Accept(SealOffer("tcp", ""), options);
    connection_ = std::move(acceptance.connection);
    const TcpAnswer address = ReadAnswer(acceptance.answer);
    socket_ = *DialTcp(address.host, address.port, 0, Soon());
    const std::string hello =
        EncodeTcpHello({address.acceptance, ProofOf(address), {{{4096, true}}, 16}});
    Send({.type = TcpFrameType::kHello, .length = hello.size()}, hello);
    TcpFrame welcome;
    EXPECT_TRUE(
        ReceiveAll(socket_.get(), std::as_writable_bytes(std::span(&welcome, 1)), Soon()).ok());
    EXPECT_EQ(welcome.type, TcpFrameType::kWelcome);
    std::string payload(welcome.length, '\0');
    EXPECT_TRUE(ReceiveAll(socket_.get(), std::as_writable_bytes(std::span(payload)), Soon()).ok());
  }

  void Send(const TcpFrame& frame, const std::string& payload = "") {
    (void)SendFrame(socket_.get(), frame, payload, Soon());
  }
  int socket() const { return socket_.get(); }
  Connection& connection() { return *connection_; }
  TcpFrame Receive() {
    TcpFrame frame;
    EXPECT_TRUE(
        ReceiveAll(socket_.get(), std::as_writable_bytes(std::span(&frame, 1)), Soon()).ok());
    return frame;
  }

 private:
  UniqueFd socket_;
  std::unique_ptr<Connection> connection_;
};

class HostileFramesTest : public testing::Test {
 protected:
  void SetUp() override {
    readable_ = victim_.Allocate(1000, Access::kRemoteRead);
    writable_ = victim_.Allocate(1000, Access::kRemoteWrite);
    std::ranges::fill(readable_->bytes(), std::byte{5});
    std::ranges::fill(writable_->bytes(), std::byte{5});
    good_ = Connect(friend_, friend_.Options(), victim_, victim_.Options({readable_}));
  }

  // Expects that the frame ends its own connection, with the peer's name, touches nothing, and that
  // nobody else notices.
  void ExpectRefused(const std::vector<std::pair<TcpFrame, std::string>>& frames,
                     std::string_view what) {
    RawPeer peer(victim_, victim_.Options({readable_, writable_}, "worker-13"));
    for (const auto& [frame, payload] : frames) {
      peer.Send(frame, payload);
    }
    std::vector<Event> events = victim_.CollectUntilClosed(peer.connection().id());
    ASSERT_EQ(events.size(), 1u) << what;
    EXPECT_FALSE(events[0].status.ok()) << what;
    EXPECT_THAT(Message(events[0].status), testing::HasSubstr("worker-13")) << what;
    for (const auto& region : {readable_, writable_}) {
      EXPECT_TRUE(std::ranges::all_of(region->bytes(), [](std::byte byte) {
        return byte == std::byte{5};
      })) << what;
    }
    auto local = friend_.Allocate(1000, Access::kLocal);
    EXPECT_TRUE(ReadNow(friend_, *good_.connector,
                        {.id = 1, .region = 0, .offset = 0, .into = local->bytes()})
                    .ok());
  }

  Side victim_{Make()};
  Side friend_{Make()};
  std::shared_ptr<Region> readable_;
  std::shared_ptr<Region> writable_;
  Pair good_;
};

TEST_F(HostileFramesTest, EndTheirConnectionAlone) {
  const std::string ten(10, 'x');
  const TcpFrame write = {.type = TcpFrameType::kWrite,
                          .flags = kLastOfWrite,
                          .region = 1,
                          .sequence = 1,
                          .length = 10};
  const TcpFrame read = {.type = TcpFrameType::kRead, .region = 0, .sequence = 1, .length = 10};
  const auto with = [](TcpFrame frame, auto change) {
    change(frame);
    return frame;
  };
  ExpectRefused({{with(write, [](TcpFrame& f) { f.region = 0; }), ten}},
                "a write to a read-only region");
  ExpectRefused({{with(write, [](TcpFrame& f) { f.region = 2; }), ten}}, "no such region");
  ExpectRefused({{with(write, [](TcpFrame& f) { f.offset = 991; }), ten}}, "a write past the end");
  ExpectRefused({{with(write, [](TcpFrame& f) { f.offset = ~uint64_t{0} - 4; }), ten}},
                "an offset that wraps");
  ExpectRefused({{with(write, [](TcpFrame& f) { f.sequence = 2; }), ten}}, "a write out of order");
  ExpectRefused({{with(write, [](TcpFrame& f) { f.flags = 0, f.length = 0; }), ""}},
                "an empty part");
  ExpectRefused({{with(write, [](TcpFrame& f) { f.length = kMaxPayloadBytes + 1; }), ten}},
                "too long a frame");
  ExpectRefused({{with(write, [](TcpFrame& f) { f.flags = 4; }), ten}}, "an unknown flag");
  ExpectRefused({{with(write, [](TcpFrame& f) { f.magic = 7; }), ten}}, "not a frame");
  ExpectRefused({{with(write, [](TcpFrame& f) { f.type = static_cast<TcpFrameType>(99); }), ten}},
                "an unknown type");
  ExpectRefused({{with(read, [](TcpFrame& f) { f.region = 9; }), ""}}, "a read of no region");
  ExpectRefused({{with(read, [](TcpFrame& f) { f.length = 1001; }), ""}}, "a read past the end");
  ExpectRefused({{with(read, [](TcpFrame& f) { f.offset = ~uint64_t{0}; }), ""}},
                "a read that wraps");
  ExpectRefused({{with(read, [](TcpFrame& f) { f.sequence = 5; }), ""}}, "a read out of order");
  ExpectRefused({{{.type = TcpFrameType::kData, .sequence = 1, .length = 10}, ten}},
                "data nobody asked for");
  ExpectRefused({{{.type = TcpFrameType::kAck, .sequence = 1}, ""}},
                "an acknowledgement of nothing");
  ExpectRefused({{{.type = TcpFrameType::kAck, .offset = 3}, ""}}, "credit for nothing");
  ExpectRefused({{{.type = TcpFrameType::kHello, .length = 10}, ten}}, "a second greeting");
}

TEST_F(HostileFramesTest, RandomBytesDoNoHarm) {
  Random random(TestSeed(), 20);
  for (int i = 0; i < 60; ++i) {
    RawPeer peer(victim_, victim_.Options({readable_, writable_}, "worker-13"));
    std::vector<std::byte> noise(random.Between(1, 5000));
    FillRandom(noise, random);
    TcpFrame frame;
    for (size_t at = 0; at + sizeof frame <= noise.size(); at += sizeof frame) {
      // Looks right at first, so that most of the other checks run.
      std::memcpy(&frame, noise.data() + at, sizeof frame);
      frame = {.type = static_cast<TcpFrameType>(random.Below(11)),
               .flags = static_cast<uint8_t>(random.Below(4)),
               .region = frame.region % 3,
               .sequence = frame.sequence % 3,
               .offset = frame.offset % 1100,
               .length = frame.length % 1100};
      if (i % 3 != 0) {
        std::memcpy(noise.data() + at, &frame, sizeof frame);
      }
    }
    (void)SendAll(peer.socket(), noise, Soon());
    shutdown(peer.socket(), SHUT_RDWR);
    victim_.CollectUntilClosed(peer.connection().id());
  }
  EXPECT_TRUE(
      std::ranges::all_of(readable_->bytes(), [](std::byte byte) { return byte == std::byte{5}; }));
}

TEST_F(HostileFramesTest, DataThatDoesNotFitItsReadIsRefused) {
  for (const auto& [sequence, offset, length] :
       {std::tuple{1, 0, 101}, std::tuple{2, 0, 10}, std::tuple{1, 5, 10}, std::tuple{1, 0, 0}}) {
    RawPeer peer(victim_, victim_.Options({readable_}));
    auto local = victim_.Allocate(1000, Access::kLocal);
    const ReadOperation read = {
        .id = 8, .region = 0, .offset = 0, .into = local->bytes().first(100)};
    while (absl::IsFailedPrecondition(peer.connection().PostReads({&read, 1}))) {
    }
    EXPECT_EQ(peer.Receive().type, TcpFrameType::kRead);
    peer.Send({.type = TcpFrameType::kData,
               .sequence = static_cast<uint64_t>(sequence),
               .offset = static_cast<uint64_t>(offset),
               .length = static_cast<uint64_t>(length)},
              std::string(static_cast<size_t>(length), 'x'));
    const std::vector<Event> events = victim_.CollectUntilClosed(peer.connection().id());
    ASSERT_EQ(events.size(), 2u);
    EXPECT_FALSE(events[0].status.ok());
    EXPECT_EQ(local->bytes()[0], std::byte{0});
  }
}

TEST(TcpTransportTest, SilentAndMalformedDialsHoldNobodyUp) {
  Side a(Make());
  Side b(Make());
  auto connector = a.transport().Offer(a.Options());
  auto acceptance = b.transport().Accept((*connector)->offer(), b.Options());
  ASSERT_TRUE(acceptance.ok());
  const TcpAnswer address = ReadAnswer(acceptance->answer);
  std::vector<UniqueFd> dials;
  Random random(TestSeed(), 21);
  for (int i = 0; i < 120; ++i) {
    dials.push_back(*DialTcp(address.host, address.port, 0, Soon()));
    std::vector<std::byte> noise(random.Below(200));
    FillRandom(noise, random);
    if (i % 4 == 1) {
      (void)SendAll(dials.back().get(), noise, Soon());
    } else if (i % 4 == 2) {
      (void)SendFrame(dials.back().get(), {.type = TcpFrameType::kHello, .length = 1 << 20}, "",
                      Soon());
    } else if (i % 4 == 3) {
      const std::string hello = EncodeTcpHello({address.acceptance, "wrong", {{}, 1}});
      (void)SendFrame(dials.back().get(), {.type = TcpFrameType::kHello, .length = hello.size()},
                      hello, Soon());
    }
  }
  auto connection = (*connector)->Complete(acceptance->answer);
  EXPECT_TRUE(connection.ok()) << Describe(connection.status());
}

TEST(TcpTransportTest, MemoryOfAGpuIsRefused) {
  const auto gpu = std::make_shared<GuardedGpu>(4096);
  const auto transport = *CreateTcpTransport({.gpu_memory = gpu});
  EXPECT_TRUE(absl::IsUnimplemented(transport->Register(gpu->memory(), Access::kLocal).status()));
  std::vector<std::byte> host(4096);
  EXPECT_TRUE(transport->Register(host, Access::kLocal).ok());
}

TEST(TcpTransportTest, APeerThatFallsSilentIsDetected) {
  Side victim(*CreateTcpTransport({.keep_alive = absl::Milliseconds(300)}));
  RawPeer peer(victim, victim.Options({}, "worker-3"));  // answers no ping
  const absl::Time start = absl::Now();
  const std::vector<Event> events = victim.CollectUntilClosed(peer.connection().id());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(events[0].status));
  EXPECT_THAT(Message(events[0].status), testing::HasSubstr("worker-3"));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(150));
}

TEST(TcpTransportTest, AnIdleConnectionLives) {
  Side a(*CreateTcpTransport({.keep_alive = absl::Milliseconds(400)}));
  Side b(*CreateTcpTransport({.keep_alive = absl::Milliseconds(400)}));
  Pair pair = Connect(a, a.Options(), b, b.Options());
  absl::SleepFor(absl::Milliseconds(1200));
  EXPECT_TRUE(WriteNow(a, *pair.connector, {.id = 1, .from = {}}).ok());
}

TEST(TcpTransportTest, ABigReadDoesNotStarveOtherConnections) {
  Side a(Make());
  Side b(Make());
  auto remote = b.Allocate(64 * kMiB, Access::kRemoteRead);
  auto local = a.Allocate(64 * kMiB, Access::kLocal);
  auto aside = a.Allocate(64, Access::kLocal);
  Pair big = Connect(a, a.Options(), b, b.Options({remote}));
  Pair small = Connect(a, a.Options(), b, b.Options({remote}));
  const ReadOperation all = {.id = 1, .region = 0, .offset = 0, .into = local->bytes()};
  const ReadOperation little = {.id = 2, .region = 0, .offset = 0, .into = aside->bytes()};
  // The posting thread may lose its core between the two posts, so one success in several tries
  // must do.
  bool overtook = false;
  for (int i = 0; i < 10 && !overtook; ++i) {
    ASSERT_TRUE(big.connector->PostReads({&all, 1}).ok());
    ASSERT_TRUE(small.connector->PostReads({&little, 1}).ok());
    const std::vector<Event> events = a.Collect(2);
    ASSERT_EQ(events.size(), 2u);
    overtook = events[0].operation == 2;
  }
  EXPECT_TRUE(overtook) << "a small read waits for a big one of another connection";
}

// Waits in quick succession make a waiter that moves bytes itself (sockets.h).
class BorrowingWaiterTest : public testing::Test {
 protected:
  void Borrow() {
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(ReadNow(a_, *pair_.connector,
                          {.id = 1, .region = 0, .offset = 0, .into = local_->bytes().first(64)})
                      .ok());
    }
  }

  Side a_{Make()};
  Side b_{Make()};
  std::shared_ptr<Region> remote_ = b_.Allocate(8 * kMiB, Access::kRemoteRead);
  std::shared_ptr<Region> local_ = a_.Allocate(8 * kMiB, Access::kRemoteRead);
  Pair pair_ = Connect(a_, a_.Options({local_}), b_, b_.Options({remote_}));
};

TEST_F(BorrowingWaiterTest, WhatItLeavesIsMovedWithoutIt) {
  Borrow();
  const ReadOperation read = {.id = 2, .region = 0, .offset = 0, .into = local_->bytes()};
  ASSERT_TRUE(pair_.connector->PostReads({&read, 1}).ok());
  Event event;
  const absl::Time deadline = Soon();
  while (a_.queue().Poll({&event, 1}) == 0) {  // nobody waits
    ASSERT_LT(absl::Now(), deadline);
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(event.operation, 2u);
  EXPECT_TRUE(event.status.ok());
  Borrow();
}

TEST_F(BorrowingWaiterTest, ServesItsPeerWhileItWaits) {
  Borrow();
  std::thread waiter([&] { EXPECT_TRUE(a_.queue().Wait(absl::Seconds(20))); });
  auto there = b_.Allocate(8 * kMiB, Access::kLocal);
  for (uint64_t id = 1; id <= 5; ++id) {
    EXPECT_TRUE(
        ReadNow(b_, *pair_.acceptor, {.id = id, .region = 0, .offset = 0, .into = there->bytes()})
            .ok());
  }
  a_.queue().Wake();
  waiter.join();
}

TEST_F(BorrowingWaiterTest, HearsWhatHappensElsewhere) {
  for (int round = 0; round < 20; ++round) {
    Borrow();
    std::thread waiter([&] { EXPECT_TRUE(a_.queue().Wait(absl::Seconds(20))); });
    absl::SleepFor(absl::Microseconds(200 * round));
    a_.queue().Wake();
    waiter.join();
  }
  Borrow();
  std::thread waiter([&] { EXPECT_TRUE(a_.queue().Wait(absl::Seconds(20))); });
  pair_.connector->Close();  // from another thread than the one that waits
  waiter.join();
  EXPECT_EQ(a_.CollectUntilClosed(pair_.connector->id()).size(), 1u);
}

TEST(TcpTransportTest, SenselessOptionsAreRefused) {
  EXPECT_THAT(Message(CreateTcpTransport({.listen_host = "0.0.0.0"}).status()),
              testing::HasSubstr("advertise_host"));
  EXPECT_TRUE(CreateTcpTransport({.listen_host = "0.0.0.0", .advertise_host = "localhost"}).ok());
  EXPECT_FALSE(CreateTcpTransport({.listen_host = "no.such.host.invalid"}).ok());
  EXPECT_FALSE(CreateTcpTransport({.io_threads = 0}).ok());
  EXPECT_FALSE(CreateTcpTransport({.keep_alive = absl::ZeroDuration()}).ok());
  auto first = ListenTcp("127.0.0.1", 0, 0);
  ASSERT_TRUE(first.ok());
  const auto taken = CreateTcpTransport({.listen_port = first->port});
  EXPECT_THAT(Message(taken.status()), testing::HasSubstr(std::to_string(first->port)))
      << "names the port in use";
}

TEST(TcpTransportTest, ADialToNobodyFailsWithTheAddress) {
  Side a(Make());
  auto connector = a.transport().Offer(a.Options({}, "server-2"));
  int port = 0;
  { port = ListenTcp("127.0.0.1", 0, 0)->port; }
  const std::string answer = EncodeTcpAnswer({.host = "127.0.0.1",
                                              .port = port,
                                              .acceptance = 1,
                                              .secret = RandomSecret(kTcpSecretBytes)});
  const auto connection = (*connector)->Complete(SealAnswer("tcp", answer));
  EXPECT_TRUE(absl::IsUnavailable(connection.status())) << Describe(connection.status());
  EXPECT_THAT(
      Message(connection.status()),
      testing::AllOf(testing::HasSubstr("server-2"), testing::HasSubstr(std::to_string(port))));
}

// Both sides name host memory; what one of them exposes is GPU memory, which the processor cannot
// touch.
class TcpGpuTest : public testing::Test {
 protected:
  static std::unique_ptr<Side> MakeSide(std::shared_ptr<GpuMemory> gpu) {
    return std::make_unique<Side>(*CreateTcpTransport({.gpu_memory = std::move(gpu)}));
  }

  const std::shared_ptr<GuardedGpu> gpu_ = std::make_shared<GuardedGpu>(8 * kMiB);
  const std::unique_ptr<Side> server_ = MakeSide(gpu_);
  const std::unique_ptr<Side> worker_ = MakeSide(nullptr);
  Random random_{TestSeed()};
};

TEST_F(TcpGpuTest, WhatIsExposedPassesThroughTheHost) {
  EXPECT_TRUE(server_->transport().capabilities().exposes_gpu_memory);
  EXPECT_FALSE(worker_->transport().capabilities().exposes_gpu_memory);
  FillRandom(gpu_->contents(), random_);
  const auto exposed = *server_->transport().Register(gpu_->memory(), Access::kRemoteWrite);
  const auto frame = worker_->Allocate(8 * kMiB, Access::kLocal);
  Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({exposed}));
  for (int i = 0; i < 12; ++i) {
    const size_t size = 1 + random_.Below(i % 3 == 0 ? 5 * kMiB : 5000);
    const size_t offset = random_.Below(8 * kMiB - size + 1);
    const std::span<std::byte> own =
        frame->bytes().subspan(random_.Below(8 * kMiB - size + 1), size);
    if (i % 2 == 0) {
      ASSERT_TRUE(
          ReadNow(*worker_, *pair.connector,
                  {.id = 1, .region = 0, .offset = static_cast<int64_t>(offset), .into = own})
              .ok());
    } else {
      FillRandom(own, random_);
      ASSERT_TRUE(WriteNow(*worker_, *pair.connector,
                           {.id = 1,
                            .region = 0,
                            .offset = static_cast<int64_t>(offset),
                            .from = own,
                            .ring = true,
                            .immediate = 5})
                      .ok());
      ASSERT_EQ(server_->Collect(1).size(), 1u);  // its data is in place
    }
    ASSERT_TRUE(std::ranges::equal(own, gpu_->contents().subspan(offset, size)));
  }
  EXPECT_EQ(server_->transport().statistics().gpu_ranges.at("staged"), 1);
  EXPECT_TRUE(worker_->transport().statistics().gpu_ranges.empty());
}

TEST_F(TcpGpuTest, ACopyThatFailsEndsTheConnection) {
  const auto exposed = *server_->transport().Register(gpu_->memory(), Access::kRemoteWrite);
  const auto frame = worker_->Allocate(4096, Access::kLocal);
  gpu_->FailCopies(Internal("the GPU fell off the bus"));
  for (const bool read : {true, false}) {
    Pair pair = Connect(*worker_, worker_->Options(), *server_, server_->Options({exposed}));
    if (read) {
      const ReadOperation operation = {.id = 1, .region = 0, .offset = 0, .into = frame->bytes()};
      ASSERT_TRUE(pair.connector->PostReads({&operation, 1}).ok());
    } else {
      const WriteOperation operation = {
          .id = 1, .region = 0, .offset = 0, .from = frame->bytes(), .ring = true};
      ASSERT_TRUE(pair.connector->PostWrites({&operation, 1}).ok());
    }
    const std::vector<Event> ended = server_->CollectUntilClosed(pair.acceptor->id());
    ASSERT_EQ(ended.size(), 1u) << "no doorbell";
    EXPECT_THAT(std::string(Message(ended[0].status)),
                testing::HasSubstr("the GPU fell off the bus"));
    const std::vector<Event> told = worker_->CollectUntilClosed(pair.connector->id());
    ASSERT_EQ(told.size(), 2u);
    EXPECT_FALSE(told[0].status.ok());
  }
}

}  // namespace
}  // namespace shoal::transport

// Encrypted connections, and who sits between the two ends of one.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "core/transport/handshake.h"
#include "core/transport/tcp/acceptor.h"
#include "core/transport/tcp/frame.h"
#include "core/transport/tcp/socket.h"
#include "core/transport/tcp/transport.h"
#include "core/transport/testing/conformance.h"

namespace shoal::transport {
namespace {

using testing::HasSubstr;

absl::Time InTime() { return absl::Now() + absl::Seconds(5); }

// Passes bytes on between two ends, keeps them, and changes some.
class Tap {
 public:
  enum Direction { kToAcceptor = 0, kToConnector = 1 };

  // `answer` is for the connecting side; returns the one by which it dials the tap.
  std::string Between(const std::string& answer) {
    TcpAnswer dial = *DecodeTcpAnswer("peer", *OpenAnswer("tcp", "peer", answer));
    target_ = std::exchange(dial.port, listener_.port);
    thread_ = std::thread([this] { Run(); });
    return SealAnswer("tcp", EncodeTcpAnswer(dial));
  }
  ~Tap() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

  std::string captured(Direction direction) const {
    absl::MutexLock lock(&mutex_);
    return captured_[direction];
  }
  // Changes the byte that comes after so many more.
  void Flip(Direction direction, size_t after) {
    absl::MutexLock lock(&mutex_);
    flip_[direction] = captured_[direction].size() + after;
  }

 private:
  void Run() {
    pollfd dialled = {.fd = listener_.socket.get(), .events = POLLIN, .revents = 0};
    poll(&dialled, 1, 5000);
    const UniqueFd connector(accept(listener_.socket.get(), nullptr, nullptr));
    const UniqueFd acceptor = *DialTcp("127.0.0.1", target_, 0, InTime());
    const std::array<int, 2> from = {connector.get(), acceptor.get()};
    while (true) {
      {
        absl::MutexLock lock(&mutex_);
        if (stopping_) {
          return;
        }
      }
      std::array<pollfd, 2> ends = {pollfd{from[0], POLLIN, 0}, pollfd{from[1], POLLIN, 0}};
      poll(ends.data(), ends.size(), 20);
      for (const Direction direction : {kToAcceptor, kToConnector}) {
        if (ends[direction].revents != 0 &&
            !Pass(direction, from[direction], from[1 - direction])) {
          return;
        }
      }
    }
  }

  bool Pass(Direction direction, int from, int to) {
    std::array<std::byte, 65536> bytes;
    const ssize_t received = recv(from, bytes.data(), bytes.size(), 0);
    if (received <= 0) {
      return false;
    }
    const auto size = static_cast<size_t>(received);
    {
      absl::MutexLock lock(&mutex_);
      const size_t before = captured_[direction].size();
      captured_[direction].append(reinterpret_cast<const char*>(bytes.data()), size);
      if (flip_[direction] >= before && flip_[direction] < before + size) {
        bytes[flip_[direction] - before] ^= std::byte{0x10};
      }
    }
    return SendAll(to, std::span(bytes).first(size), InTime()).ok();
  }

  const TcpListener listener_ = *ListenTcp("127.0.0.1", 0, 0);
  int target_ = 0;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::array<std::string, 2> captured_ ABSL_GUARDED_BY(mutex_);
  std::array<size_t, 2> flip_ ABSL_GUARDED_BY(mutex_) = {~size_t{0}, ~size_t{0}};
  std::thread thread_;
};

constexpr int64_t kBytes = 200000;  // several records
constexpr char kWeights[] = "weights that somebody knows";

void FillWithWeights(std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] = static_cast<std::byte>(kWeights[at % (sizeof(kWeights) - 1)]);
  }
}

// A worker and a server with somebody between them.
struct Tapped {
  explicit Tapped(bool encrypt)
      : worker(*CreateTcpTransport({.encrypt = encrypt})),
        server(*CreateTcpTransport({.encrypt = encrypt})) {
    FillWithWeights(weights->bytes());
    std::ranges::fill(slots->bytes(), std::byte{5});
    std::ranges::fill(local->bytes(), std::byte{5});
  }

  absl::Status Connect() {
    SHOAL_ASSIGN_OR_RETURN(const auto connector,
                           worker.transport().Offer(worker.Options({}, "server-1")));
    SHOAL_ASSIGN_OR_RETURN(Acceptance acceptance,
                           server.transport().Accept(connector->offer(),
                                                     server.Options({weights, slots}, "worker-7")));
    acceptor = std::move(acceptance.connection);
    SHOAL_ASSIGN_OR_RETURN(connection, connector->Complete(tap.Between(acceptance.answer)));
    return absl::OkStatus();
  }
  absl::Status Read() {
    return ReadNow(worker, *connection, {.id = 1, .region = 0, .into = local->bytes()});
  }
  absl::Status Write() {
    FillWithWeights(local->bytes());
    return WriteNow(worker, *connection, {.id = 2, .region = 1, .from = local->bytes()});
  }

  Side worker;
  Side server;
  std::shared_ptr<Region> weights = server.Allocate(kBytes, Access::kRemoteRead);
  std::shared_ptr<Region> slots = server.Allocate(kBytes, Access::kRemoteWrite);
  std::shared_ptr<Region> local = worker.Allocate(kBytes, Access::kLocal);
  Tap tap;
  std::unique_ptr<Connection> acceptor;
  std::unique_ptr<Connection> connection;
};

bool Untouched(Region& region) {
  return std::ranges::all_of(region.bytes(), [](std::byte byte) { return byte == std::byte{5}; });
}

// Whether the header of a frame begins there or later.
bool HoldsFrame(const std::string& captured, size_t from) {
  const std::string magic(reinterpret_cast<const char*>(&kTcpMagic), sizeof kTcpMagic);
  TcpFrame frame;
  for (size_t at = captured.find(magic, from); at <= captured.size() - sizeof frame;
       at = captured.find(magic, at + 1)) {
    std::memcpy(&frame, captured.data() + at, sizeof frame);
    if (CheckFrame(frame).ok()) {  // the magic alone comes by chance
      return true;
    }
  }
  return false;
}

TEST(EncryptedTcp, WhatPassesHoldsNoKnownPattern) {
  for (const bool encrypt : {false, true}) {
    Tapped tapped(encrypt);
    ASSERT_OK(tapped.Connect());
    ASSERT_OK(tapped.Read());
    EXPECT_TRUE(std::ranges::equal(tapped.local->bytes(), tapped.weights->bytes()));
    ASSERT_OK(tapped.Write());
    EXPECT_TRUE(std::ranges::equal(tapped.local->bytes(), tapped.slots->bytes()));
    for (const Tap::Direction direction : {Tap::kToAcceptor, Tap::kToConnector}) {
      const std::string captured = tapped.tap.captured(direction);
      ASSERT_GT(captured.size(), static_cast<size_t>(kBytes));
      for (size_t at = 0; at + 8 < sizeof(kWeights); ++at) {
        EXPECT_EQ(captured.find(std::string(kWeights + at, 8)) == std::string::npos, encrypt);
      }
      EXPECT_EQ(HoldsFrame(captured, sizeof(TcpFrame)), !encrypt) << "behind the handshake";
    }
  }
}

TEST(EncryptedTcp, AChangedByteOfAPushEndsTheConnectionByName) {
  for (const size_t after : {0, 1, 4, 5, 8, 47, 48, 1000, 65559, 70000, 199000}) {
    Tapped tapped(/*encrypt=*/true);
    ASSERT_OK(tapped.Connect());
    tapped.tap.Flip(Tap::kToAcceptor, after);
    EXPECT_FALSE(tapped.Write().ok()) << after;
    const std::vector<Event> events = tapped.server.CollectUntilClosed(tapped.acceptor->id());
    ASSERT_EQ(events.size(), 1u) << "no doorbell";
    EXPECT_THAT(Message(events[0].status), HasSubstr("worker-7: a record")) << after;
    if (after < 65560) {
      EXPECT_TRUE(Untouched(*tapped.slots)) << after;
    }
    EXPECT_EQ(tapped.slots->bytes().back(), std::byte{5}) << after;
  }
}

TEST(EncryptedTcp, AChangedByteOfWeightsEndsTheConnectionByName) {
  Tapped tapped(/*encrypt=*/true);
  ASSERT_OK(tapped.Connect());
  tapped.tap.Flip(Tap::kToConnector, 100);
  EXPECT_THAT(Message(tapped.Read()), HasSubstr("server-1: a record is not what was sealed"));
  EXPECT_TRUE(Untouched(*tapped.local));
}

// Hello and Welcome travel in plain text. Who changes what they say of regions changes the keys.
TEST(EncryptedTcp, AChangedHandshakeIsFound) {
  constexpr size_t kProof = 4 + kTcpSecretBytes;
  for (const auto& [direction, after] :
       {std::pair{Tap::kToAcceptor, sizeof(TcpFrame) + 4 + 8 + kProof + 1},
        std::pair{Tap::kToConnector, sizeof(TcpFrame) + 1}}) {
    Tapped tapped(/*encrypt=*/true);
    tapped.tap.Flip(direction, after);  // of max_outstanding
    ASSERT_OK(tapped.Connect());
    EXPECT_FALSE(tapped.Read().ok());
    const std::vector<Event> events = tapped.server.CollectUntilClosed(tapped.acceptor->id());
    EXPECT_THAT(Message(events.back().status), HasSubstr("worker-7"));
  }
}

TEST(EncryptedTcp, PlainTextIsNotFallenBackTo) {
  Side worker(*CreateTcpTransport({.encrypt = true}));
  Side server(*CreateTcpTransport({}));
  const auto connector = *worker.transport().Offer(worker.Options({}, "server-1"));
  const Acceptance acceptance = *server.transport().Accept(connector->offer(), server.Options());
  const auto connection = connector->Complete(acceptance.answer);
  EXPECT_TRUE(absl::IsFailedPrecondition(connection.status()));
  EXPECT_THAT(Message(connection.status()),
              testing::AllOf(HasSubstr("server-1"), HasSubstr("plain text")));
}

}  // namespace
}  // namespace shoal::transport

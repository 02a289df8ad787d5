// Handshakes: secrets work once, hostile bytes, timeouts, invalid options.
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "core/base/status.h"
#include "core/transport/testing/conformance.h"

namespace shoal::transport {
namespace {

TEST_P(ConformanceTest, AnAnswerServesOnce) {
  auto first = a().transport().Offer(a().Options());
  auto second = a().transport().Offer(a().Options());
  ASSERT_TRUE(first.ok() && second.ok());
  auto acceptance = b().transport().Accept((*first)->offer(), b().Options());
  ASSERT_TRUE(acceptance.ok()) << Describe(acceptance.status());
  auto connection = (*first)->Complete(acceptance->answer);
  ASSERT_TRUE(connection.ok()) << Describe(connection.status());
  EXPECT_FALSE((*second)->Complete(acceptance->answer).ok()) << "a replayed answer";
  EXPECT_FALSE((*first)->Complete(acceptance->answer).ok()) << "completed twice";
  // The real connection is unharmed.
  EXPECT_TRUE(
      WriteNow(a(), **connection, {.id = 1, .from = {}, .ring = true, .immediate = 5}).ok());
  EXPECT_EQ(b().Collect(1).size(), 1u);
}

TEST_P(ConformanceTest, ADamagedAnswerNeverConnects) {
  auto connector = a().transport().Offer(a().Options());
  ASSERT_TRUE(connector.ok());
  auto acceptance = b().transport().Accept((*connector)->offer(), b().Options());
  ASSERT_TRUE(acceptance.ok());
  Random random(TestSeed(), 10);
  for (int i = 0; i < 30; ++i) {
    std::string damaged = acceptance->answer;
    if (random.Below(3) == 0) {
      damaged.resize(random.Below(damaged.size()));
    } else {
      // The secret is at the end.
      const size_t at =
          damaged.size() - 1 - (i % 2 == 0 ? random.Below(16) : random.Below(damaged.size()));
      damaged[at] = static_cast<char>(damaged[at] ^ (1 + random.Below(255)));
    }
    ConnectionOptions options = a().Options();
    options.handshake_timeout = absl::Milliseconds(200);
    auto other = a().transport().Offer(options);
    ASSERT_TRUE(other.ok());
    EXPECT_FALSE((*other)->Complete(damaged).ok()) << "try " << i;
  }
  // A peer that knows the secret can still connect.
  auto connection = (*connector)->Complete(acceptance->answer);
  EXPECT_TRUE(connection.ok()) << Describe(connection.status());
}

TEST_P(ConformanceTest, HostileBytesAreRefused) {
  Random random(TestSeed(), 11);
  auto connector = a().transport().Offer(a().Options());
  ASSERT_TRUE(connector.ok());
  const std::string& good = (*connector)->offer();
  EXPECT_LE(good.size(), kMaxHandshakeBytes);
  for (int i = 0; i < 200; ++i) {
    std::string bad;
    switch (random.Below(3)) {
      case 0:
        bad.resize(random.Below(300));
        FillRandom({reinterpret_cast<std::byte*>(bad.data()), bad.size()}, random);
        break;
      case 1:
        bad = good.substr(0, random.Below(good.size()));
        break;
      default:
        bad = good + std::string(1 + random.Below(2 * kMaxHandshakeBytes), 'x');
    }
    EXPECT_FALSE(b().transport().Accept(bad, b().Options()).ok());
    auto other = a().transport().Offer(a().Options());
    ASSERT_TRUE(other.ok());
    EXPECT_FALSE((*other)->Complete(bad).ok());
  }
  EXPECT_FALSE((*connector)->Complete(good).ok()) << "an offer is not an answer";
}

TEST_P(ConformanceTest, AHandshakeThatIsNotCompletedExpires) {
  auto connector = a().transport().Offer(a().Options());
  ASSERT_TRUE(connector.ok());
  ConnectionOptions options = b().Options();
  options.handshake_timeout = absl::Milliseconds(150);
  auto acceptance = b().transport().Accept((*connector)->offer(), options);
  ASSERT_TRUE(acceptance.ok());
  const WriteOperation bell = {.id = 1, .from = {}, .ring = true};
  EXPECT_FALSE(acceptance->connection->PostWrites({&bell, 1}).ok()) << "not connected yet";
  const std::vector<Event> events = b().CollectUntilClosed(acceptance->connection->id());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE((*connector)->Complete(acceptance->answer).ok()) << "an expired secret";
}

TEST_P(ConformanceTest, AnAcceptanceCanBeGivenUp) {
  auto connector = a().transport().Offer(a().Options());
  ASSERT_TRUE(connector.ok());
  auto acceptance = b().transport().Accept((*connector)->offer(), b().Options());
  ASSERT_TRUE(acceptance.ok());
  acceptance->connection.reset();
  EXPECT_FALSE((*connector)->Complete(acceptance->answer).ok());
  EXPECT_EQ(b().Collect(1).size(), 1u) << "the kClosed of the one given up";
  // An offer can be given up without further ado.
  EXPECT_TRUE(a().transport().Offer(a().Options()).ok());
}

TEST_P(ConformanceTest, SenselessOptionsAreRefused) {
  ConnectionOptions options = a().Options();
  options.queue = nullptr;
  EXPECT_FALSE(a().transport().Offer(options).ok());
  options = a().Options();
  options.max_outstanding = 0;
  EXPECT_FALSE(a().transport().Offer(options).ok());
  options = a().Options();
  options.handshake_timeout = absl::ZeroDuration();
  EXPECT_FALSE(a().transport().Offer(options).ok());
  EXPECT_FALSE(a().transport().Offer(a().Options({a().Allocate(64, Access::kLocal)})).ok())
      << "kLocal cannot be exposed";
  EXPECT_FALSE(a().transport().Offer(a().Options({nullptr})).ok());
  EXPECT_FALSE(a().transport().Offer(a().Options({b().Allocate(64, Access::kRemoteRead)})).ok())
      << "another transport's";
  EXPECT_FALSE(a().transport().Allocate(0, Access::kRemoteRead).ok());
  EXPECT_FALSE(a().transport().Allocate(-1, Access::kLocal).ok());
}

TEST_P(ConformanceTest, WaitReturnsOnWakeAndOnTime) {
  const absl::Time start = absl::Now();
  EXPECT_FALSE(a().queue().Wait(absl::Milliseconds(30)));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(25));
  a().queue().Wake();
  EXPECT_TRUE(a().queue().Wait(absl::Seconds(10))) << "a wake before the wait counts";
  std::thread waker([this] {
    absl::SleepFor(absl::Milliseconds(30));
    a().queue().Wake();
  });
  EXPECT_TRUE(a().queue().Wait(absl::Seconds(10)));
  waker.join();
  EXPECT_FALSE(a().queue().Wait(absl::ZeroDuration())) << "each wake counts once";
}

TEST_P(ConformanceTest, OneTransportConnectsToItself) {
  auto remote = a().Allocate(1000, Access::kRemoteWrite);
  auto local = a().Allocate(1000, Access::kLocal);
  Pair pair = Connect(a(), a().Options(), a(), a().Options({remote}));
  const WriteOperation operation = {
      .id = 1, .region = 0, .offset = 0, .from = local->bytes(), .ring = true, .immediate = 9};
  ASSERT_TRUE(pair.connector->PostWrites({&operation, 1}).ok());
  EXPECT_EQ(a().Collect(2).size(), 2u);
}

}  // namespace
}  // namespace shoal::transport

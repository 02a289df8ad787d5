// How connections end while operations are in flight: closed by this side, closed by the peer, or
// with the other process killed.
#include <signal.h>

#include <algorithm>
#include <thread>

#include "absl/time/clock.h"
#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/testing/conformance.h"
#include "core/transport/testing/forked_peer.h"

namespace shoal::transport {
namespace {

size_t CountClosed(const std::vector<Event>& events) {
  return static_cast<size_t>(std::ranges::count(events, Event::Kind::kClosed, &Event::kind));
}

TEST_P(ConformanceTest, ClosingEndsInOrderOnBothSides) {
  auto remote = b().Allocate(4096, Access::kRemoteWrite);
  Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
  ASSERT_TRUE(
      WriteNow(a(), *pair.connector, {.id = 1, .from = {}, .ring = true, .immediate = 3}).ok());
  pair.connector->Close();
  pair.connector->Close();
  const std::vector<Event> here = a().CollectUntilClosed(pair.connector->id());
  EXPECT_EQ(here.size(), 1u);
  const std::vector<Event> there = b().CollectUntilClosed(pair.acceptor->id());
  ASSERT_EQ(there.size(), 2u) << "the doorbell, then the end";
  EXPECT_EQ(there[0].immediate, 3u);
  EXPECT_TRUE(there[1].status.ok()) << Describe(there[1].status);
  const WriteOperation bell = {.id = 1, .from = {}, .ring = true};
  EXPECT_FALSE(pair.connector->PostWrites({&bell, 1}).ok());
  EXPECT_FALSE(pair.acceptor->PostWrites({&bell, 1}).ok());
  EXPECT_FALSE(pair.acceptor->PostReads({}).ok());
  pair.acceptor->Close();
  pair.acceptor.reset();
  EXPECT_TRUE(b().Collect(1, absl::Milliseconds(50)).empty()) << "kClosed comes once";
}

TEST_P(ConformanceTest, OutstandingOperationsCompleteOnceWhenClosedHere) {
  auto remote = b().Allocate(8 * kMiB, Access::kRemoteWrite);
  auto local = a().Allocate(8 * kMiB, Access::kLocal);
  for (int round = 0; round < 6; ++round) {
    Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
    std::set<uint64_t> open;
    for (uint64_t id = 1; id <= 20; ++id) {
      const ReadOperation read = {
          .id = id, .region = 0, .offset = 0, .into = local->bytes().first(kMiB)};
      const WriteOperation write = {.id = 100 + id,
                                    .region = 0,
                                    .offset = kMiB,
                                    .from = local->bytes().subspan(4 * kMiB, kMiB),
                                    .ring = true};
      ASSERT_TRUE(pair.connector->PostReads({&read, 1}).ok());
      ASSERT_TRUE(pair.connector->PostWrites({&write, 1}).ok());
      open.insert({id, 100 + id});
    }
    if (round % 3 == 1) {
      pair.connector.reset();
    } else if (round % 3 == 2) {
      std::thread([&] { pair.connector->Close(); }).join();
    } else {
      pair.connector->Close();
    }
    // After Close, the poster owns memory named in operations again: no late data lands in it.
    std::ranges::fill(local->bytes(), std::byte{0x5A});
    std::vector<Event> events;
    while (CountClosed(events) == 0) {
      const std::vector<Event> more = a().Collect(1);
      ASSERT_EQ(more.size(), 1u);
      events.push_back(more[0]);
    }
    for (const Event& event : events) {
      if (event.kind != Event::Kind::kClosed) {
        EXPECT_EQ(open.erase(event.operation), 1u) << "completed twice, or never posted";
        EXPECT_TRUE(event.status.ok() || absl::IsCancelled(event.status)) << Describe(event.status);
      }
    }
    EXPECT_TRUE(open.empty()) << open.size() << " operations never completed";
    b().CollectUntilClosed(pair.acceptor->id());
    EXPECT_TRUE(std::ranges::all_of(local->bytes(),
                                    [](std::byte byte) { return byte == std::byte{0x5A}; }));
  }
}

TEST_P(ConformanceTest, OutstandingOperationsCompleteOnceWhenThePeerCloses) {
  auto remote = b().Allocate(8 * kMiB, Access::kRemoteWrite);
  auto local = a().Allocate(8 * kMiB, Access::kLocal);
  for (int round = 0; round < 4; ++round) {
    Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
    std::thread closer([&] {
      absl::SleepFor(absl::Microseconds(300 * round));
      if (round % 2 == 0) {
        pair.acceptor->Close();
      } else {
        pair.acceptor.reset();
      }
    });
    std::set<uint64_t> open;
    for (uint64_t id = 1; id <= 40; ++id) {
      const ReadOperation read = {
          .id = id, .region = 0, .offset = 0, .into = local->bytes().first(kMiB)};
      const WriteOperation write = {
          .id = 100 + id, .region = 0, .offset = kMiB, .from = local->bytes().last(kMiB)};
      if (pair.connector->PostReads({&read, 1}).ok()) {
        open.insert(id);
      }
      if (pair.connector->PostWrites({&write, 1}).ok()) {
        open.insert(100 + id);
      }
    }
    const std::vector<Event> events = a().CollectUntilClosed(pair.connector->id());
    for (const Event& event : events) {
      if (event.kind != Event::Kind::kClosed) {
        EXPECT_EQ(open.erase(event.operation), 1u);
      }
    }
    EXPECT_TRUE(open.empty()) << open.size() << " operations never completed";
    closer.join();
    (void)b().Collect(1, absl::Milliseconds(200));
  }
}

TEST_P(ConformanceTest, CloseEndsThePeersAccess) {
  auto remote = b().Allocate(4 * kMiB, Access::kRemoteWrite);
  auto local = a().Allocate(4 * kMiB, Access::kLocal);
  for (int round = 0; round < 8; ++round) {
    Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
    std::atomic<bool> stop{false};
    std::thread poster([&] {
      std::ranges::fill(local->bytes(), std::byte{1});
      while (!stop.load()) {
        const WriteOperation write = {.id = 1, .region = 0, .offset = 0, .from = local->bytes()};
        (void)pair.connector->PostWrites({&write, 1});
        Event event;
        (void)a().queue().Poll({&event, 1});
      }
    });
    absl::SleepFor(absl::Milliseconds(3 * round));
    pair.acceptor->Close();
    std::ranges::fill(remote->bytes(), std::byte{0});
    absl::SleepFor(absl::Milliseconds(5));
    EXPECT_TRUE(
        std::ranges::all_of(remote->bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
    stop.store(true);
    poster.join();
    pair.connector->Close();
    b().CollectUntilClosed(pair.acceptor->id());
    Event event;
    while (a().queue().Wait(absl::Milliseconds(20)) && a().queue().Poll({&event, 1}) > 0) {
    }
  }
}

// A process that accepts one connection and keeps it until it is killed.
class AcceptingProcess : public ForkedPeer {
 public:
  explicit AcceptingProcess(const std::function<std::unique_ptr<Transport>()>& make)
      : ForkedPeer([&make](const ForkedChannel& test) { Run(make, test); }) {}

  std::string Accept(const std::string& offer) const {
    channel().Send(offer);
    return channel().Receive();
  }

 private:
  static void Run(const std::function<std::unique_ptr<Transport>()>& make,
                  const ForkedChannel& test) {
    Side side(make());
    auto region = side.Allocate(16 * kMiB, Access::kRemoteWrite);
    auto acceptance = side.transport().Accept(test.Receive(), side.Options({region}));
    SHOAL_CHECK(acceptance.ok());
    test.Send(acceptance->answer);
    for (;;) {
      (void)side.Collect(1);
    }
  }
};

TEST_P(ConformanceTest, APeerKilledMidTransferGivesOneEndAndAllCompletions) {
  if (GetParam().in_process_only) {
    GTEST_SKIP() << "this transport reaches no other process";
  }
  for (int round = 0; round < 3; ++round) {
    AcceptingProcess peer(GetParam().make);  // forks before this process has threads
    Side side(GetParam().make());
    auto local = side.Allocate(16 * kMiB, Access::kLocal);
    auto connector = side.transport().Offer(side.Options({}, "server-1"));
    ASSERT_TRUE(connector.ok());
    auto connection = (*connector)->Complete(peer.Accept((*connector)->offer()));
    ASSERT_TRUE(connection.ok()) << Describe(connection.status());
    std::thread killer([&] {
      absl::SleepFor(absl::Milliseconds(5 + 10 * round));
      peer.Kill();
    });
    std::map<uint64_t, int> completions;
    uint64_t id = 0;
    bool closed = false;
    const absl::Time deadline = RealClock().Now() + absl::Seconds(10);
    while (!closed && RealClock().Now() < deadline) {
      ++id;
      const ReadOperation read = {
          .id = 2 * id, .region = 0, .offset = 0, .into = local->bytes().first(4 * kMiB)};
      if ((*connection)->PostReads({&read, 1}).ok()) {
        completions[2 * id] = 0;
      }
      const WriteOperation write = {.id = 2 * id + 1,
                                    .region = 0,
                                    .offset = 0,
                                    .from = local->bytes().last(4 * kMiB),
                                    .ring = true};
      if ((*connection)->PostWrites({&write, 1}).ok()) {
        completions[2 * id + 1] = 0;
      }
      for (const Event& event : side.Collect(2, absl::Milliseconds(2))) {
        if (event.kind == Event::Kind::kClosed) {
          closed = true;
          EXPECT_FALSE(event.status.ok());
          EXPECT_THAT(Describe(event.status), testing::HasSubstr("server-1"));
        } else {
          ++completions.at(event.operation);
        }
      }
    }
    killer.join();
    EXPECT_TRUE(closed);
    for (const auto& [operation, count] : completions) {
      EXPECT_EQ(count, 1) << "operation " << operation;
    }
  }
}

TEST_P(ConformanceTest, AStoppedPeerHoldsNobodyUp) {
  if (GetParam().in_process_only) {
    GTEST_SKIP() << "this transport reaches no other process";
  }
  AcceptingProcess peer(GetParam().make);
  Side side(GetParam().make());
  auto local = side.Allocate(16 * kMiB, Access::kLocal);
  auto connector = side.transport().Offer(side.Options());
  ASSERT_TRUE(connector.ok());
  auto connection = (*connector)->Complete(peer.Accept((*connector)->offer()));
  ASSERT_TRUE(connection.ok());
  peer.Signal(SIGSTOP);
  const ReadOperation read = {.id = 1, .region = 0, .offset = 0, .into = local->bytes()};
  EXPECT_TRUE((*connection)->PostReads({&read, 1}).ok());
  const absl::Time start = RealClock().Now();
  (*connection)->Close();
  EXPECT_LT(RealClock().Now() - start, absl::Seconds(5));
  const std::vector<Event> events = side.CollectUntilClosed((*connection)->id());
  EXPECT_EQ(events.size(), 2u);
}

TEST_P(ConformanceTest, ClosingRacesPosting) {
  auto remote = b().Allocate(kMiB, Access::kRemoteWrite);
  auto local = a().Allocate(kMiB, Access::kLocal);
  for (int round = 0; round < 20; ++round) {
    Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
    std::set<uint64_t> posted;
    std::thread poster([&] {
      for (uint64_t id = 1; id < 500; ++id) {
        const WriteOperation write = {.id = id,
                                      .region = 0,
                                      .offset = 0,
                                      .from = local->bytes().first(100 * id),
                                      .ring = true};
        const absl::Status status = pair.connector->PostWrites({&write, 1});
        if (status.ok()) {
          posted.insert(id);
        } else if (!absl::IsResourceExhausted(status)) {
          return;
        }
      }
    });
    absl::SleepFor(absl::Microseconds(100 * round));
    pair.connector->Close();
    poster.join();
    for (const Event& event : a().CollectUntilClosed(pair.connector->id())) {
      if (event.kind == Event::Kind::kWriteDone) {
        EXPECT_EQ(posted.erase(event.operation), 1u);
      }
    }
    EXPECT_TRUE(posted.empty());
    b().CollectUntilClosed(pair.acceptor->id());
  }
}

}  // namespace
}  // namespace shoal::transport

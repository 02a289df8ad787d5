// Reads, writes and doorbells: they move the right bytes, in the promised order, exactly once.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/testing/conformance.h"

namespace shoal::transport {
namespace {

using testing::ElementsAre;

TEST_P(ConformanceTest, RegionsStartZeroedAndPeersSeeTheirSizes) {
  auto weights = b().Allocate(10000, Access::kRemoteRead);
  auto slots = b().Allocate(4096, Access::kRemoteWrite);
  auto acknowledgements = a().Allocate(64, Access::kRemoteWrite);
  EXPECT_TRUE(
      std::ranges::all_of(weights->bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(weights->bytes().data()) % 4096, 0u);
  EXPECT_EQ(weights->access(), Access::kRemoteRead);
  Pair pair = Connect(a(), a().Options({acknowledgements}, "server-1"), b(),
                      b().Options({weights, slots}, "worker-1"));
  EXPECT_THAT(pair.connector->remote_region_sizes(), ElementsAre(10000, 4096));
  EXPECT_EQ(pair.connector->peer(), "server-1");
  EXPECT_EQ(pair.acceptor->peer(), "worker-1");
  EXPECT_NE(pair.connector->id(), pair.acceptor->id());
  // The acceptor is certainly usable once something from the connector has arrived.
  ASSERT_TRUE(
      WriteNow(a(), *pair.connector, {.id = 1, .region = 1, .offset = 0, .from = {}, .ring = true})
          .ok());
  ASSERT_EQ(b().Collect(1).size(), 1u);
  EXPECT_THAT(pair.acceptor->remote_region_sizes(), ElementsAre(64));
}

TEST_P(ConformanceTest, ReadsAtRandomOffsetsMatchTheOracle) {
  Random random(TestSeed(), 1);
  auto remote = b().Allocate(3 * kMiB + 17, Access::kRemoteRead);
  FillRandom(remote->bytes(), random);
  Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
  auto local = a().Allocate(8 * kMiB, Access::kLocal);
  for (int round = 0; round < 40; ++round) {
    std::vector<ReadOperation> operations;
    int64_t used = 0;
    const int64_t count = random.Between(1, 12);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t largest = random.Below(4) == 0 ? 2 * kMiB : 5000;
      const int64_t size = std::min<int64_t>(random.Between(0, largest), 8 * kMiB - used);
      const int64_t offset = random.Between(0, static_cast<int64_t>(remote->bytes().size()) - size);
      operations.push_back({.id = static_cast<uint64_t>(1000 * round + i),
                            .region = 0,
                            .offset = offset,
                            .into = local->bytes().subspan(used, size)});
      used += size;
    }
    ASSERT_TRUE(pair.connector->PostReads(operations).ok());
    std::set<uint64_t> done;
    for (const Event& event : a().Collect(operations.size())) {
      EXPECT_EQ(event.kind, Event::Kind::kReadDone);
      EXPECT_EQ(event.connection, pair.connector->id());
      EXPECT_TRUE(event.status.ok()) << Describe(event.status);
      EXPECT_TRUE(done.insert(event.operation).second) << "completed twice";
    }
    ASSERT_EQ(done.size(), operations.size());
    for (const ReadOperation& operation : operations) {
      EXPECT_TRUE(std::ranges::equal(
          operation.into, remote->bytes().subspan(operation.offset, operation.into.size())));
    }
  }
}

TEST_P(ConformanceTest, WritesAtRandomOffsetsMatchTheOracle) {
  Random random(TestSeed(), 2);
  auto remote = b().Allocate(2 * kMiB + 5, Access::kRemoteWrite);
  std::vector<std::byte> oracle(remote->bytes().size());
  Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
  auto local = a().Allocate(4 * kMiB, Access::kLocal);
  FillRandom(local->bytes(), random);
  for (int round = 0; round < 40; ++round) {
    std::vector<WriteOperation> operations;
    for (int64_t i = 0, count = random.Between(1, 12); i < count; ++i) {
      const int64_t size = random.Between(0, random.Below(4) == 0 ? 2 * kMiB : 5000);
      const int64_t from = random.Between(0, 4 * kMiB - size);
      const int64_t offset = random.Between(0, static_cast<int64_t>(oracle.size()) - size);
      operations.push_back({.id = static_cast<uint64_t>(i),
                            .region = 0,
                            .offset = offset,
                            .from = local->bytes().subspan(from, size)});
      // Overlapping writes show the order in which they became visible.
      std::ranges::copy(operations.back().from, oracle.begin() + offset);
    }
    ASSERT_TRUE(pair.connector->PostWrites(operations).ok());
    const std::vector<Event> events = a().Collect(operations.size());
    ASSERT_EQ(events.size(), operations.size());
    for (size_t i = 0; i < events.size(); ++i) {
      EXPECT_EQ(events[i].kind, Event::Kind::kWriteDone);
      EXPECT_EQ(events[i].operation, i) << "writes complete in the order posted";
      EXPECT_TRUE(events[i].status.ok()) << Describe(events[i].status);
    }
    // A write's completion means that its bytes are in place at the peer.
    ASSERT_TRUE(std::ranges::equal(remote->bytes(), oracle)) << "round " << round;
  }
}

TEST_P(ConformanceTest, ADoorbellComesAfterTheDataOfItsWriteAndOfAllBefore) {
  constexpr int kWrites = 300;
  constexpr int64_t kSlot = 8192;
  Random random(TestSeed(), 3);
  auto remote = b().Allocate(kWrites * kSlot, Access::kRemoteWrite);
  Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
  auto local = a().Allocate(kWrites * kSlot, Access::kLocal);
  for (int i = 0; i < kWrites; ++i) {
    std::memset(local->bytes().data() + i * kSlot, i % 255 + 1, kSlot);
  }
  std::vector<uint32_t> rung;
  for (int i = 0; i < kWrites; ++i) {
    const int64_t size = random.Between(1, kSlot);
    const bool ring = random.Below(3) != 0 || i + 1 == kWrites;
    const WriteOperation operation = {.id = 1,
                                      .region = 0,
                                      .offset = i * kSlot,
                                      .from = local->bytes().subspan(i * kSlot, size),
                                      .ring = ring,
                                      .immediate = static_cast<uint32_t>(i)};
    ASSERT_TRUE(pair.connector->PostWrites({&operation, 1}).ok());
    if (ring) {
      rung.push_back(static_cast<uint32_t>(i));
    }
  }
  size_t next = 0;
  for (const Event& event : b().Collect(rung.size())) {
    ASSERT_EQ(event.kind, Event::Kind::kDoorbell);
    EXPECT_EQ(event.connection, pair.acceptor->id());
    ASSERT_EQ(event.immediate, rung[next++]);
    for (int i = 0; i <= static_cast<int>(event.immediate); ++i) {
      ASSERT_EQ(remote->bytes()[i * kSlot], static_cast<std::byte>(i % 255 + 1))
          << "data of an earlier write is missing";
    }
  }
  EXPECT_EQ(next, rung.size());
  EXPECT_EQ(a().Collect(kWrites).size(), static_cast<size_t>(kWrites));
}

TEST_P(ConformanceTest, EmptyOperationsCompleteAndTouchNothing) {
  auto remote = b().Allocate(64, Access::kRemoteRead);
  Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
  EXPECT_TRUE(
      ReadNow(a(), *pair.connector, {.id = 1, .region = 99, .offset = -5, .into = {}}).ok());
  EXPECT_TRUE(
      WriteNow(a(), *pair.connector, {.id = 2, .region = 99, .offset = -5, .from = {}}).ok());
  EXPECT_TRUE(pair.connector->PostReads({}).ok());
  EXPECT_TRUE(pair.connector->PostWrites({}).ok());
  // A bare doorbell.
  EXPECT_TRUE(
      WriteNow(
          a(), *pair.connector,
          {.id = 3, .region = 0, .offset = 0, .from = {}, .ring = true, .immediate = 0xFFFFFFFF})
          .ok());
  const std::vector<Event> events = b().Collect(1);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].immediate, 0xFFFFFFFF);
}

TEST_P(ConformanceTest, RegisteredMemoryServesOwnOperations) {
  Random random(TestSeed(), 4);
  auto remote = b().Allocate(100000, Access::kRemoteWrite);
  Pair pair = Connect(a(), a().Options(), b(), b().Options({remote}));
  std::vector<std::byte> mine(50000);
  FillRandom(mine, random);
  const std::vector<std::byte> expected = mine;
  auto registered = a().transport().Register(mine, Access::kLocal);
  ASSERT_TRUE(registered.ok());
  EXPECT_EQ((*registered)->access(), Access::kLocal);
  EXPECT_TRUE(
      WriteNow(a(), *pair.connector, {.id = 1, .region = 0, .offset = 333, .from = mine}).ok());
  std::ranges::fill(mine, std::byte{0});
  EXPECT_TRUE(
      ReadNow(a(), *pair.connector, {.id = 2, .region = 0, .offset = 333, .into = mine}).ok());
  EXPECT_EQ(mine, expected);
  EXPECT_FALSE(a().transport().Register({}, Access::kLocal).ok());
}

TEST_P(ConformanceTest, RegisteredMemoryIsExposedWhereTheTransportCan) {
  std::vector<std::byte> memory(10000);
  auto exposed = b().transport().Register(memory, Access::kRemoteWrite);
  if (!b().transport().capabilities().exposes_any_memory) {
    EXPECT_TRUE(absl::IsUnimplemented(exposed.status()));
    return;
  }
  ASSERT_TRUE(exposed.ok()) << Describe(exposed.status());
  auto read_only = b().transport().Register(memory, Access::kRemoteRead);
  ASSERT_TRUE(read_only.ok());
  Pair pair = Connect(a(), a().Options(), b(), b().Options({*exposed, *read_only}));
  auto local = a().Allocate(100, Access::kLocal);
  local->bytes()[0] = std::byte{9};
  EXPECT_TRUE(
      WriteNow(a(), *pair.connector, {.id = 1, .region = 0, .offset = 77, .from = local->bytes()})
          .ok());
  EXPECT_EQ(memory[77], std::byte{9});
  local->bytes()[0] = std::byte{0};
  EXPECT_TRUE(
      ReadNow(a(), *pair.connector, {.id = 2, .region = 1, .offset = 77, .into = local->bytes()})
          .ok());
  EXPECT_EQ(local->bytes()[0], std::byte{9});
  const WriteOperation write = {.id = 3, .region = 1, .offset = 0, .from = local->bytes()};
  EXPECT_TRUE(absl::IsPermissionDenied(pair.connector->PostWrites({&write, 1})));
}

TEST_P(ConformanceTest, BothSidesReadWriteAndRingAtOnce) {
  constexpr int kRounds = 200;
  constexpr int64_t kBytes = 20000;
  auto region_a = a().Allocate(kBytes, Access::kRemoteWrite);
  auto region_b = b().Allocate(kBytes, Access::kRemoteWrite);
  Pair pair = Connect(a(), a().Options({region_a}), b(), b().Options({region_b}));
  auto local_a = a().Allocate(kBytes, Access::kLocal);
  auto local_b = b().Allocate(kBytes, Access::kLocal);
  // A rally: each side answers a doorbell with a write of the next number, which is read back
  // before it is answered.
  auto serve = [&](Side& side, Connection& connection, Region& local, int number) {
    std::memset(local.bytes().data(), number, kBytes);
    ASSERT_TRUE(
        connection
            .PostWrites(std::vector<WriteOperation>{{.id = 1,
                                                     .region = 0,
                                                     .offset = 0,
                                                     .from = local.bytes(),
                                                     .ring = true,
                                                     .immediate = static_cast<uint32_t>(number)}})
            .ok());
    ASSERT_EQ(side.Collect(1).size(), 1u);
  };
  for (int number = 0; number < kRounds; number += 2) {
    serve(a(), *pair.connector, *local_a, number);
    std::vector<Event> events = b().Collect(1);
    ASSERT_EQ(events.size(), 1u);
    ASSERT_EQ(events[0].immediate, static_cast<uint32_t>(number));
    ASSERT_TRUE(std::ranges::all_of(
        region_b->bytes(), [&](std::byte byte) { return byte == static_cast<std::byte>(number); }));
    serve(b(), *pair.acceptor, *local_b, number + 1);
    events = a().Collect(1);
    ASSERT_EQ(events.size(), 1u);
    ASSERT_EQ(events[0].immediate, static_cast<uint32_t>(number + 1));
    ASSERT_TRUE(std::ranges::all_of(region_a->bytes(), [&](std::byte byte) {
      return byte == static_cast<std::byte>(number + 1);
    }));
  }
}

TEST_P(ConformanceTest, ManyConnectionsShareAQueue) {
  constexpr int kConnections = 12;
  Random random(TestSeed(), 5);
  auto remote = b().Allocate(kMiB, Access::kRemoteRead);
  FillRandom(remote->bytes(), random);
  auto local = a().Allocate(kConnections * kMiB, Access::kLocal);
  std::vector<Pair> pairs;
  std::map<uint64_t, int> index;
  for (int i = 0; i < kConnections; ++i) {
    pairs.push_back(Connect(a(), a().Options(), b(), b().Options({remote})));
    index[pairs.back().connector->id()] = i;
  }
  for (int i = 0; i < kConnections; ++i) {
    const ReadOperation operation = {.id = static_cast<uint64_t>(100 + i),
                                     .region = 0,
                                     .offset = 0,
                                     .into = local->bytes().subspan(i * kMiB, kMiB)};
    ASSERT_TRUE(pairs[i].connector->PostReads({&operation, 1}).ok());
    const WriteOperation bell = {.id = 7,
                                 .region = 0,
                                 .offset = 0,
                                 .from = {},
                                 .ring = true,
                                 .immediate = static_cast<uint32_t>(i)};
    ASSERT_TRUE(pairs[i].connector->PostWrites({&bell, 1}).ok());
  }
  for (const Event& event : a().Collect(2 * kConnections)) {
    if (event.kind == Event::Kind::kReadDone) {
      EXPECT_EQ(event.operation, static_cast<uint64_t>(100 + index.at(event.connection)));
    }
  }
  std::set<uint32_t> bells;
  for (const Event& event : b().Collect(kConnections)) {
    bells.insert(event.immediate);
  }
  EXPECT_EQ(bells.size(), static_cast<size_t>(kConnections));
  for (int i = 0; i < kConnections; ++i) {
    EXPECT_TRUE(std::ranges::equal(local->bytes().subspan(i * kMiB, kMiB), remote->bytes()));
  }
}

TEST_P(ConformanceTest, QueuesOfOneTransportAreSeparate) {
  auto remote = b().Allocate(64, Access::kRemoteWrite);
  auto second = b().transport().CreateQueue();
  ASSERT_TRUE(second.ok());
  ConnectionOptions to_second = b().Options({remote});
  to_second.queue = second->get();
  Pair first_pair = Connect(a(), a().Options(), b(), b().Options({remote}));
  Pair second_pair = Connect(a(), a().Options(), b(), to_second);
  EXPECT_TRUE(
      WriteNow(a(), *second_pair.connector, {.id = 1, .from = {}, .ring = true, .immediate = 42})
          .ok());
  ASSERT_TRUE((*second)->Wait(absl::Seconds(10)));
  Event event;
  for (int i = 0; i < 1000 && (*second)->Poll({&event, 1}) == 0; ++i) {
    (*second)->Wait(absl::Milliseconds(10));
  }
  EXPECT_EQ(event.immediate, 42u);
  EXPECT_EQ(event.connection, second_pair.acceptor->id());
  EXPECT_TRUE(b().Collect(1, absl::Milliseconds(50)).empty());
  second_pair.acceptor.reset();
}

}  // namespace
}  // namespace shoal::transport

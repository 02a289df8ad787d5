#include "core/transport/testing/fault_transport.h"

#include <algorithm>

#include "core/base/bytes.h"
#include "core/base/status.h"
#include "core/transport/registry/registry.h"
#include "core/transport/testing/conformance.h"

namespace shoal::transport {
namespace {

std::unique_ptr<Transport> Make(const char* inner, const FaultOptions& faults) {
  return MakeFaultTransport(*CreateTransport(inner), faults);
}

FaultOptions Benign() {
  return {.seed = TestSeed(),
          .delay_probability = 0.3,
          .max_delay = absl::Microseconds(300),
          .reorder = true};
}

INSTANTIATE_TEST_SUITE_P(
    Fault, ConformanceTest,
    testing::Values(TransportUnderTest{"still", [] { return Make("shm", {}); }},
                    TransportUnderTest{"shm", [] { return Make("shm", Benign()); }},
                    TransportUnderTest{"tcp", [] { return Make("tcp", Benign()); }}),
    NameOf);

struct Ends {
  explicit Ends(const FaultOptions& faults)
      : a(Make("shm", faults)),
        b(Make("shm", {})),
        remote(b.Allocate(kMiB, Access::kRemoteWrite)),
        local(a.Allocate(kMiB, Access::kLocal)),
        pair(Connect(a, a.Options({}, "server-1"), b, b.Options({remote}))) {}
  Side a;
  Side b;
  std::shared_ptr<Region> remote;
  std::shared_ptr<Region> local;
  Pair pair;
};

std::vector<uint64_t> OrderOfReads(uint64_t seed) {
  ManualClock clock;
  Ends ends({.seed = seed,
             .delay_probability = 0.5,
             .max_delay = absl::Seconds(1),
             .reorder = true,
             .clock = &clock});
  std::vector<ReadOperation> reads;
  for (uint64_t id = 0; id < 50; ++id) {
    reads.push_back({.id = id, .region = 0, .offset = 0, .into = ends.local->bytes().first(8)});
  }
  EXPECT_TRUE(ends.pair.connector->PostReads(reads).ok());
  std::vector<uint64_t> order;
  for (int i = 0; i < 20; ++i) {
    clock.Advance(absl::Milliseconds(100));
    for (const Event& event : ends.a.Collect(50 - order.size(), absl::Milliseconds(1))) {
      order.push_back(event.operation);
    }
  }
  return order;
}

TEST(FaultTransportTest, ASeedGivesOneOrderAndAnotherSeedAnother) {
  const std::vector<uint64_t> first = OrderOfReads(1);
  EXPECT_EQ(first.size(), 50u);
  EXPECT_FALSE(std::ranges::is_sorted(first));
  EXPECT_NE(first, OrderOfReads(2));
}

TEST(FaultTransportTest, NothingIsReleasedBeforeItsTime) {
  ManualClock clock;
  Ends ends({.seed = 3, .delay_probability = 1, .max_delay = absl::Hours(1), .clock = &clock});
  const ReadOperation read = {.id = 1, .region = 0, .offset = 0, .into = ends.local->bytes()};
  ASSERT_TRUE(ends.pair.connector->PostReads({&read, 1}).ok());
  ends.pair.connector->Close();
  EXPECT_TRUE(ends.a.Collect(1, absl::Milliseconds(20)).empty());
  clock.Advance(absl::Hours(1));
  const std::vector<Event> events = ends.a.Collect(2);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Event::Kind::kReadDone);
  EXPECT_EQ(events[1].kind, Event::Kind::kClosed);
}

TEST(FaultTransportTest, DropsDoorbellsButNeverData) {
  Side a(Make("shm", {}));
  Side b(Make("shm", {.seed = 5, .drop_doorbell_probability = 0.5}));
  auto remote = b.Allocate(1000, Access::kRemoteWrite);
  auto local = a.Allocate(1000, Access::kLocal);
  std::ranges::fill(local->bytes(), std::byte{1});
  Pair pair = Connect(a, a.Options(), b, b.Options({remote}));
  for (uint32_t i = 0; i < 1000; ++i) {
    const WriteOperation write = {.id = i,
                                  .region = 0,
                                  .offset = i,
                                  .from = local->bytes().first(1),
                                  .ring = true,
                                  .immediate = i};
    ASSERT_TRUE(WriteNow(a, *pair.connector, write).ok());
  }
  const size_t heard = b.Collect(1000, absl::Milliseconds(100)).size();
  EXPECT_GT(heard, 350u);
  EXPECT_LT(heard, 650u);
  EXPECT_TRUE(
      std::ranges::all_of(remote->bytes(), [](std::byte byte) { return byte == std::byte{1}; }));
}

TEST(FaultTransportTest, BreaksAfterTheGivenNumberOfOperations) {
  Ends ends({.break_after_operations = 10});
  const ReadOperation read = {
      .id = 1, .region = 0, .offset = 0, .into = ends.local->bytes().first(8)};
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(ReadNow(ends.a, *ends.pair.connector, read).ok());
  }
  EXPECT_TRUE(absl::IsUnavailable(ends.pair.connector->PostReads({&read, 1})));
  const std::vector<Event> events = ends.a.CollectUntilClosed(ends.pair.connector->id());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_TRUE(absl::IsUnavailable(events[0].status));
  EXPECT_THAT(Message(events[0].status), testing::HasSubstr("server-1"));
  ends.b.CollectUntilClosed(ends.pair.acceptor->id());
}

TEST(FaultTransportTest, DamagesOnePayloadAndNotWhatItWasSentFrom) {
  Ends ends({.damage_payload = 2});
  const std::span<std::byte> from = ends.local->bytes().first(64);
  std::ranges::fill(from, std::byte{1});
  for (int64_t i = 0; i < 3; ++i) {
    const WriteOperation writes[] = {
        {.id = 1, .region = 0, .offset = i * 64, .from = from},
        {.id = 2, .region = 0, .offset = 4096, .from = from, .ring = true}};
    ASSERT_TRUE(ends.pair.connector->PostWrites(writes).ok());
  }
  ends.b.Collect(3);
  const auto is_whole = [](std::byte byte) { return byte == std::byte{1}; };
  EXPECT_TRUE(std::ranges::all_of(from, is_whole));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(std::ranges::count_if(ends.remote->bytes().subspan(i * 64, 64), is_whole),
              i == 1 ? 63 : 64);
  }
}

TEST(FaultTransportTest, CompletionsKeepToTheRate) {
  ManualClock clock;
  Ends ends({.bytes_per_second = 1000, .clock = &clock});
  std::vector<ReadOperation> reads(
      3, {.id = 1, .region = 0, .offset = 0, .into = ends.local->bytes().first(500)});
  ASSERT_TRUE(ends.pair.connector->PostReads(reads).ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(ends.a.Collect(1, absl::Milliseconds(5)).empty());
    clock.Advance(absl::Milliseconds(500));
    EXPECT_EQ(ends.a.Collect(2, absl::Milliseconds(5)).size(), 1u);
  }
}

}  // namespace
}  // namespace shoal::transport

// Two processes on a fake fabric, both under load, for tests that make something go wrong: records
// what was posted and what completed, and checks what must hold afterwards.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/testing/conformance.h"
#include "core/transport/verbs/testing/fake_verbs.h"
#include "core/transport/verbs/transport.h"

namespace shoal::transport {

inline constexpr int64_t kSlot = 4096;
inline constexpr int64_t kSlots = 512;

// Time-outs short enough for tests, which find errors by them.
inline TransportOptions FastOptions() {
  TransportOptions options;
  options.keep_alive = absl::Milliseconds(400);
  options.verbs.ack_timeout = 10;  // 4 ms
  options.verbs.retry_count = 3;
  options.verbs.rnr_timer = 5;
  options.verbs.goodbye_patience = absl::Milliseconds(30);
  options.verbs.spread_bytes = 256 * kKiB;
  options.verbs.piece_bytes = 64 * kKiB;
  return options;
}

inline uint8_t PatternOf(uint64_t id) { return static_cast<uint8_t>(1 + id % 251); }

// One side of a connection under load. Writes each of the peer's slots at most once, so that what a
// completion promised can be checked afterwards, and reads from the peer's weights.
class Loaded {
 public:
  Loaded(std::unique_ptr<Transport> transport, uint64_t seed)
      : side(std::move(transport)), random_(seed, 5) {
    weights = side.Allocate(kMiB, Access::kRemoteRead);
    slots = side.Allocate(kSlots * kSlot, Access::kRemoteWrite);
    into_ = side.Allocate(kMiB, Access::kLocal);
    from_ = side.Allocate(kSlots * kSlot, Access::kLocal);
    for (size_t i = 0; i < weights->bytes().size(); ++i) {
      weights->bytes()[i] = static_cast<std::byte>(i % 249);
    }
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      std::memset(from_->bytes().data() + slot * kSlot, PatternOf(static_cast<uint64_t>(slot)),
                  kSlot);
    }
  }
  ConnectionOptions Options() { return side.Options({weights, slots}); }

  // Posts a few operations, if there is room and the connection takes them.
  void Post() {
    if (closed || connection == nullptr) {
      return;
    }
    std::vector<WriteOperation> writes;
    for (uint64_t count = 1 + random_.Below(6); count > 0 && next_slot_ < kSlots; --count) {
      const int64_t slot = next_slot_++;
      const auto bytes = static_cast<size_t>(random_.Between(0, kSlot));
      writes.push_back({.id = static_cast<uint64_t>(slot),
                        .region = 1,
                        .offset = slot * kSlot,
                        .from = from_->bytes().subspan(static_cast<size_t>(slot * kSlot), bytes),
                        .ring = random_.Below(2) == 0,
                        .immediate = static_cast<uint32_t>(slot)});
    }
    if (!writes.empty()) {
      if (connection->PostWrites(writes).ok()) {
        for (const WriteOperation& write : writes) {
          open_writes.emplace(write.id, write.from.size());
        }
      } else {
        next_slot_ = static_cast<int64_t>(writes.front().id);  // none was taken
      }
    }
    if (random_.Below(2) == 0) {
      const auto bytes =
          static_cast<size_t>(random_.Between(1, random_.Below(4) == 0 ? kMiB : 5000));
      const ReadOperation read = {
          .id = next_read_, .region = 0, .offset = 0, .into = into_->bytes().first(bytes)};
      if (connection->PostReads({&read, 1}).ok()) {
        open_reads.insert(next_read_++);
      }
    }
  }

  // Takes what has come. Every completion must be of an open operation.
  void Poll() {
    Event events[16];
    side.queue().Wait(absl::Milliseconds(1));
    const size_t count = side.queue().Poll(events);
    for (const Event& event : std::span(events).first(count)) {
      ASSERT_FALSE(closed) << "an event after the end";
      switch (event.kind) {
        case Event::Kind::kWriteDone: {
          const auto it = open_writes.find(event.operation);
          ASSERT_NE(it, open_writes.end()) << "write " << event.operation << " completed twice";
          if (event.status.ok()) {
            written.insert(*it);
          }
          open_writes.erase(it);
          break;
        }
        case Event::Kind::kReadDone:
          ASSERT_EQ(open_reads.erase(event.operation), 1u) << "a read completed twice";
          break;
        case Event::Kind::kDoorbell:
          // In the order rung, each at most once; some may be lost.
          ASSERT_GT(static_cast<int64_t>(event.immediate), last_bell_);
          last_bell_ = event.immediate;
          ++bells;
          break;
        case Event::Kind::kClosed:
          closed = true;
          end = event.status;
          break;
      }
    }
  }
  bool idle() const { return open_writes.empty() && open_reads.empty(); }
  bool finished() const { return next_slot_ >= kSlots && idle(); }

  // Checks that what completed successfully at this side is in the peer's slots.
  void ExpectWritten(Loaded& peer) const {
    for (const auto& [id, bytes] : written) {
      const auto slot = peer.slots->bytes().subspan(id * kSlot, bytes);
      ASSERT_TRUE(std::ranges::all_of(
          slot, [&](std::byte byte) { return byte == static_cast<std::byte>(PatternOf(id)); }))
          << "write " << id << " completed well and is not there";
    }
  }

  Side side;
  std::shared_ptr<Region> weights;
  std::shared_ptr<Region> slots;
  std::unique_ptr<Connection> connection;
  std::map<uint64_t, size_t> open_writes;
  std::set<uint64_t> open_reads;
  std::map<uint64_t, size_t> written;
  bool closed = false;
  absl::Status end;
  int bells = 0;

 private:
  Random random_;
  std::shared_ptr<Region> into_;
  std::shared_ptr<Region> from_;
  int64_t next_slot_ = 0;
  uint64_t next_read_ = 1;
  int64_t last_bell_ = -1;
};

// Returns the device of a rail, of a kind drawn from the seed.
inline FakeDevice DrawDevice(uint64_t seed, const std::string& name, const std::string& address) {
  switch (seed % 4) {
    case 0:
      return FakeDevice::SoftRoce(name, address);
    case 1: {
      FakeDevice device = FakeDevice::Ethernet(name, address);
      device.windows = false;
      device.max_work_requests = 300;  // fewer than what is posted at once
      device.max_inline_bytes = 0;
      device.max_reads = 1;
      return device;
    }
    default:
      return FakeDevice::Ethernet(name, address);
  }
}

// Two processes, each on its own host.
class TwoHosts {
 public:
  explicit TwoHosts(uint64_t seed, int rails = 1, const TransportOptions& options = FastOptions())
      : fabric({.seed = seed}) {
    for (int host = 0; host < 2; ++host) {
      std::vector<FakeDevice> devices;
      for (int rail = 0; rail < rails; ++rail) {
        devices.push_back(DrawDevice(seed, fmt::format("{}{}", host == 0 ? "left" : "right", rail),
                                     fmt::format("10.{}.0.{}", rail, host + 1)));
      }
      auto transport = CreateVerbsTransport(options, fabric.AddHost(std::move(devices)));
      SHOAL_CHECK(transport.ok());
      (host == 0 ? a : b) = std::make_unique<Loaded>(*std::move(transport), seed + host);
    }
    Pair pair = Connect(a->side, a->Options(), b->side, b->Options());
    a->connection = std::move(pair.connector);
    b->connection = std::move(pair.acceptor);
    AwaitAcceptor();
  }
  ~TwoHosts() {
    a.reset();
    b.reset();
    EXPECT_EQ(fabric.live(), LiveObjects{});
  }

  // Drives both sides until `done`, or until everything has been posted and completed.
  void Drive(const std::function<bool()>& done, absl::Duration most = absl::Seconds(15)) {
    const absl::Time deadline = RealClock().Now() + most;
    while (!done() && !(a->finished() && b->finished())) {
      ASSERT_LT(RealClock().Now(), deadline) << "it hangs";
      for (Loaded* loaded : {a.get(), b.get()}) {
        loaded->Post();
        loaded->Poll();
        if (testing::Test::HasFatalFailure()) {
          return;
        }
      }
    }
  }
  // Waits until both have seen the end, from either side; nothing may be open afterwards.
  void AwaitEnds(absl::Duration most = absl::Seconds(10)) {
    const absl::Time deadline = RealClock().Now() + most;
    while (!a->closed || !b->closed) {
      ASSERT_LT(RealClock().Now(), deadline) << "no end: " << a->closed << b->closed;
      a->Poll();
      b->Poll();
    }
    EXPECT_TRUE(a->idle()) << a->open_writes.size() << " writes and " << a->open_reads.size()
                           << " reads never completed";
    EXPECT_TRUE(b->idle());
    a->ExpectWritten(*b);
    b->ExpectWritten(*a);
  }
  void CloseAndAwaitEnds() {
    a->connection->Close();
    AwaitEnds();
  }
  // Once both have closed, peers must not change their memory.
  void ExpectUntouchedAfterClose() {
    a->connection->Close();
    b->connection->Close();
    for (Loaded* loaded : {a.get(), b.get()}) {
      std::ranges::fill(loaded->slots->bytes(), std::byte{0xEE});
    }
    absl::SleepFor(absl::Milliseconds(5));
    for (Loaded* loaded : {a.get(), b.get()}) {
      EXPECT_TRUE(std::ranges::all_of(loaded->slots->bytes(),
                                      [](std::byte byte) { return byte == std::byte{0xEE}; }));
    }
  }

  FakeFabric fabric;
  std::unique_ptr<Loaded> a;
  std::unique_ptr<Loaded> b;

 private:
  // The acceptor may post once it has heard from the connector.
  void AwaitAcceptor() {
    const absl::Time deadline = RealClock().Now() + absl::Seconds(5);
    while (b->connection->remote_region_sizes().empty()) {
      ASSERT_LT(RealClock().Now(), deadline);
      b->Poll();
    }
  }
};

}  // namespace shoal::transport

// Keys in the wrong hands, on real queue pairs: a client that puts another's key, or one of a
// connection that is over, into its requests reaches nothing; and the server lives on. The keys
// never leave the transport, so they are taken from the requests on their way to the device.
#include <algorithm>
#include <optional>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/status.h"
#include "core/transport/registry/registry.h"
#include "core/transport/testing/conformance.h"
#include "core/transport/testing/forked_peer.h"
#include "tests/rdma/post_hook.h"

namespace shoal::transport {
namespace {

constexpr int64_t kBytes = 4096;

// Where a request reaches into a peer's memory.
struct Target {
  uint64_t address = 0;
  uint32_t key = 0;
};

// Notes the target of each read and write, and forges it where it is told to.
class Forger : public PostHook {
 public:
  void BeforePost(ibv_send_wr* requests) override {
    absl::MutexLock lock(&mutex_);
    for (ibv_send_wr* request = requests; request != nullptr; request = request->next) {
      if ((request->opcode != IBV_WR_RDMA_READ && request->opcode != IBV_WR_RDMA_WRITE) ||
          request->num_sge == 0) {
        continue;
      }
      if (forged_.has_value()) {
        request->wr.rdma.remote_addr = forged_->address;
        request->wr.rdma.rkey = forged_->key;
      }
      last_ = {request->wr.rdma.remote_addr, request->wr.rdma.rkey};
    }
  }
  Target last() const {
    absl::MutexLock lock(&mutex_);
    return last_;
  }
  void Forge(std::optional<Target> target) {
    absl::MutexLock lock(&mutex_);
    forged_ = target;
  }

 private:
  mutable absl::Mutex mutex_;
  Target last_ ABSL_GUARDED_BY(mutex_);
  std::optional<Target> forged_ ABSL_GUARDED_BY(mutex_);
};

Forger& TheForger() {
  static Forger* const forger = [] {
    auto* made = new Forger;  // as long as there are queue pairs
    SetPostHook(made);
    return made;
  }();
  return *forger;
}

std::unique_ptr<Transport> Make() {
  TransportOptions options;
  options.verbs.max_rails = 1;
  options.keep_alive = absl::Seconds(4);
  return *CreateTransport("verbs", options);
}

bool AllAre(const std::shared_ptr<Region>& region, std::byte value) {
  return std::ranges::all_of(region->bytes(), [=](std::byte byte) { return byte == value; });
}

class StaleKeys : public ::testing::Test {
 protected:
  void SetUp() override {
    TheForger().Forge(std::nullopt);
    local_ = client_.Allocate(kBytes, Access::kLocal);
    std::ranges::fill(local_->bytes(), std::byte{7});
  }
  void TearDown() override { TheForger().Forge(std::nullopt); }

  std::shared_ptr<Region> Slots() { return server_.Allocate(kBytes, Access::kRemoteWrite); }
  Pair Connect(const std::shared_ptr<Region>& exposed, const std::string& client) {
    return transport::Connect(client_, client_.Options({}, "server-0"), server_,
                              server_.Options({exposed}, client));
  }
  absl::Status Write(Connection& connection) {
    return WriteNow(client_, connection,
                    {.id = 1, .region = 0, .offset = 0, .from = local_->bytes()});
  }
  absl::Status Read(Connection& connection) {
    return ReadNow(client_, connection,
                   {.id = 1, .region = 0, .offset = 0, .into = local_->bytes()});
  }
  // With that target in its place; the connection must end of it, on both sides.
  void ExpectRefused(Pair& pair, Target target, bool write) {
    TheForger().Forge(target);
    const absl::Status status = write ? Write(*pair.connector) : Read(*pair.connector);
    TheForger().Forge(std::nullopt);
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << Describe(status);
    client_.CollectUntilClosed(pair.connector->id());
    server_.CollectUntilClosed(pair.acceptor->id());
  }

  Forger& forger_ = TheForger();
  Side server_{Make()};
  Side client_{Make()};
  std::shared_ptr<Region> local_;
};

TEST_F(StaleKeys, SlotsAreWrittenByTheirClientAlone) {
  const auto own = Slots(), others = Slots();
  Pair honest = Connect(own, "worker-0"), other = Connect(others, "worker-1");
  ASSERT_TRUE(Write(*honest.connector).ok());
  EXPECT_TRUE(AllAre(own, std::byte{7}));
  const Target target = forger_.last();
  std::ranges::fill(own->bytes(), std::byte{0});
  ExpectRefused(other, target, /*write=*/true);
  EXPECT_TRUE(AllAre(own, std::byte{0}));
  EXPECT_TRUE(Write(*honest.connector).ok()) << "the honest one is not disturbed";
  EXPECT_TRUE(AllAre(own, std::byte{7}));
}

TEST_F(StaleKeys, AConnectionsKeysEndWithIt) {
  const auto slots = Slots(), others = Slots();
  Pair over = Connect(slots, "worker-0"), other = Connect(others, "worker-1"),
       third = Connect(others, "worker-2");
  ASSERT_TRUE(Write(*over.connector).ok());
  const Target target = forger_.last();
  over.acceptor->Close();  // as when a lease ends
  client_.CollectUntilClosed(over.connector->id());
  std::ranges::fill(slots->bytes(), std::byte{0});
  ExpectRefused(other, target, /*write=*/true);
  EXPECT_TRUE(AllAre(slots, std::byte{0}));
  EXPECT_TRUE(Write(*third.connector).ok());
}

TEST_F(StaleKeys, AReaderWithTheKeyOfMemoryThatIsGoneGetsAnError) {
  auto weights = server_.Allocate(kBytes, Access::kRemoteRead);
  const auto now = server_.Allocate(kBytes, Access::kRemoteRead);
  Pair before = Connect(weights, "worker-0"), reader = Connect(now, "worker-1"),
       other = Connect(now, "worker-2");
  ASSERT_TRUE(Read(*before.connector).ok());
  const Target target = forger_.last();
  before.acceptor->Close();
  client_.CollectUntilClosed(before.connector->id());
  server_.CollectUntilClosed(before.acceptor->id());
  before = {};
  weights.reset();
  ExpectRefused(reader, target, /*write=*/false);
  EXPECT_TRUE(Read(*other.connector).ok());
}

TEST_F(StaleKeys, ReadOnlyMemoryIsNotWrittenEvenWithItsKey) {
  const auto weights = server_.Allocate(kBytes, Access::kRemoteRead), slots = Slots();
  Pair reader = Connect(weights, "worker-0"), writer = Connect(slots, "worker-1");
  ASSERT_TRUE(Read(*reader.connector).ok());
  const Target target = forger_.last();
  std::ranges::fill(local_->bytes(), std::byte{9});
  ExpectRefused(writer, target, /*write=*/true);
  EXPECT_TRUE(AllAre(weights, std::byte{0}));
  EXPECT_TRUE(Read(*reader.connector).ok());
}

// What a process does that writes without pause until it is killed.
void ConnectAndWrite(const ForkedChannel& test) {
  Side side(Make());
  auto local = side.Allocate(kMiB, Access::kLocal);
  std::ranges::fill(local->bytes(), std::byte{1});
  auto connector = side.transport().Offer(side.Options());
  SHOAL_CHECK(connector.ok());
  test.Send((*connector)->offer());
  auto connection = (*connector)->Complete(test.Receive());
  SHOAL_CHECK(connection.ok());
  while (true) {
    const WriteOperation write = {.id = 1, .region = 0, .offset = 0, .from = local->bytes()};
    (void)(*connection)->PostWrites({&write, 1});
    (void)side.Collect(1, absl::Milliseconds(1));
  }
}

TEST(KilledClient, NoLongerWritesIntoItsSlots) {
  ForkedPeer client(ConnectAndWrite);  // before this process has threads
  Side server(Make());
  const auto slots = server.Allocate(kMiB, Access::kRemoteWrite);
  auto acceptance =
      server.transport().Accept(client.channel().Receive(), server.Options({slots}, "worker-0"));
  ASSERT_TRUE(acceptance.ok()) << Describe(acceptance.status());
  client.channel().Send(acceptance->answer);
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (!AllAre(slots, std::byte{1}) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_TRUE(AllAre(slots, std::byte{1}));
  client.Kill();
  const std::vector<Event> events = server.CollectUntilClosed(acceptance->connection->id());
  ASSERT_EQ(events.size(), 1u);
  EXPECT_FALSE(events[0].status.ok());
  std::ranges::fill(slots->bytes(), std::byte{0});
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_TRUE(AllAre(slots, std::byte{0}));
}

}  // namespace
}  // namespace shoal::transport

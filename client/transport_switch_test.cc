// A transport whose connections keep breaking gives way to the next, and is tried again after a
// rest: with real shm and tcp and injected breaks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "client/testing/client_rig.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/registry/registry.h"
#include "core/transport/testing/fault_transport.h"
#include "core/transport/testing/forwarding_transport.h"

namespace shoal::client {
namespace {

constexpr absl::Duration kRest = absl::Minutes(5);

// The machine's clock plus the test's skips: a rest ends when the test says so, however slow the
// machine is.
class SkippingClock final : public Clock {
 public:
  absl::Time Now() const override { return RealClock().Now() + kRest * skipped_rests_.load(); }
  void SleepFor(absl::Duration duration) override { RealClock().SleepFor(duration); }
  void SkipRest() { ++skipped_rests_; }

 private:
  std::atomic<int> skipped_rests_ = 0;
};

// The same servers over shm and tcp; takes shm if it is offered.
class TwoRigs : public ServerClient {
 public:
  TwoRigs() : shm_({.transport = "shm"}), tcp_({.transport = "tcp"}) {}

  absl::StatusOr<proto::ConnectReply> Connect(int server, const proto::ConnectRequest& request,
                                              absl::Duration timeout) override {
    for (const auto& offer : request.offers()) {
      if (offer.transport() == "shm") {
        return shm_.server_client->Connect(server, request, timeout);
      }
    }
    return tcp_.server_client->Connect(server, request, timeout);
  }
  void Cancel() override {
    shm_.server_client->Cancel();
    tcp_.server_client->Cancel();
  }

  std::unique_ptr<ParameterClient> NewClient(transport::Transport* shm, transport::Transport* tcp,
                                             Clock& clock = RealClock()) {
    return *ParameterClient::Create({.job_id = kRigJob,
                                     .incarnation = 77,
                                     .max_reconnects = 100,
                                     .reconnect_delay = absl::Milliseconds(1),
                                     .transport_policy = {.breaks = 3, .first_rest = kRest}},
                                    shm_.unit_specs, shm_.partitions, shm_.map,
                                    shm_.options.servers, this, {shm, tcp}, clock);
  }

  void RefuseConnections(int server, const absl::Status& why) {
    shm_.server(server).RefuseConnections(why);
    tcp_.server(server).RefuseConnections(why);
  }

  // Reads and checks every unit of version `version`.
  void ReadAll(ParameterClient& client, int64_t version) {
    shm_.Publish(version);
    tcp_.Publish(version);
    ASSERT_TRUE(client.BeginRead(version).ok());
    for (int unit = 0; unit < shm_.units(); ++unit) {
      auto view = client.Get(unit);
      ASSERT_TRUE(view.ok()) << view.status();
      ExpectWeights(*view, DType::kF32, version, unit);
      client.Release(unit);
    }
  }

 private:
  ClientRig shm_;
  ClientRig tcp_;
};

TEST(TransportSwitch, BreakingConnectionsGiveWayAndAreTriedAgain) {
  TwoRigs rigs;
  const auto shm = transport::MakeFaultTransport(*transport::CreateTransport("shm"),
                                                 {.seed = 3, .break_after_operations = 2});
  const auto tcp = *transport::CreateTransport("tcp");
  SkippingClock clock;
  const auto client = rigs.NewClient(shm.get(), tcp.get(), clock);
  rigs.ReadAll(*client, 0);
  ClientStatistics statistics = client->statistics();
  ASSERT_EQ(statistics.transports[0].name, "shm");
  EXPECT_EQ(statistics.transports[0].rests, 3) << "one at each server";
  EXPECT_EQ(statistics.transports[0].connections, 9);
  EXPECT_EQ(statistics.transports[1].connections, 3);
  EXPECT_EQ(statistics.switches, 3);

  rigs.ReadAll(*client, 1);
  EXPECT_EQ(client->statistics().transports[0].connections, 9) << "it rests";

  // After the rest a step tries shm again, finds it no better, and finishes over tcp.
  clock.SkipRest();
  rigs.ReadAll(*client, 2);
  statistics = client->statistics();
  EXPECT_EQ(statistics.transports[0].connections, 18);
  EXPECT_EQ(statistics.transports[0].rests, 6);
  EXPECT_EQ(statistics.switches, 9);
}

// What lacks a server asks at once whether others go on without it.
TEST(TransportSwitch, AServerThatIsLostWhileATransportIsTriedAgainIsMissed) {
  TwoRigs rigs;
  const auto shm = transport::MakeFaultTransport(*transport::CreateTransport("shm"),
                                                 {.seed = 3, .break_after_operations = 2});
  const auto tcp = *transport::CreateTransport("tcp");
  SkippingClock clock;
  const auto client = rigs.NewClient(shm.get(), tcp.get(), clock);
  rigs.ReadAll(*client, 0);
  EXPECT_FALSE(client->LacksServer());
  rigs.RefuseConnections(1, absl::UnavailableError("gone fishing"));
  clock.SkipRest();
  ASSERT_TRUE(client->BeginRead(0).ok());
  const absl::Time patience = absl::Now() + absl::Seconds(60);
  while (!client->LacksServer() && absl::Now() < patience) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_TRUE(client->LacksServer());
}

// shm without memory to allocate.
class RefusingTransport final : public transport::ForwardingTransport {
 public:
  RefusingTransport() : ForwardingTransport(transport::CreateTransport("shm").value()) {}

  absl::StatusOr<std::shared_ptr<transport::Region>> Allocate(int64_t bytes,
                                                              transport::Access access) override {
    if (refuse_allocation) {
      return ResourceExhausted("locked memory is short");
    }
    return ForwardingTransport::Allocate(bytes, access);
  }
  absl::StatusOr<std::shared_ptr<transport::Region>> Register(std::span<std::byte> memory,
                                                              transport::Access access) override {
    if (++registrations > allowed) {
      return ResourceExhausted("locked memory is short");
    }
    return ForwardingTransport::Register(memory, access);
  }

  bool refuse_allocation = false;
  int allowed = 0;
  int registrations = 0;
};

TEST(TransportSwitch, ATransportThatCannotTakeTheBuffersIsDoneWithout) {
  const auto tcp = *transport::CreateTransport("tcp");
  for (const int allowed : {0, 1, 2, 3, 4}) {  // weights, headers, then a server's buffers each
    SCOPED_TRACE(allowed);
    TwoRigs rigs;
    RefusingTransport shm;
    shm.allowed = allowed;
    const auto client = rigs.NewClient(&shm, tcp.get());
    rigs.ReadAll(*client, 0);
    const ClientStatistics statistics = client->statistics();
    ASSERT_EQ(statistics.transports.size(), 1u);
    EXPECT_EQ(statistics.transports[0].name, "tcp");
  }
  TwoRigs rigs;
  RefusingTransport shm;
  shm.allowed = 1000;
  shm.refuse_allocation = true;
  const auto client = rigs.NewClient(&shm, tcp.get());
  rigs.ReadAll(*client, 0);
  EXPECT_EQ(client->statistics().transports[1].connections, 3) << "shm cannot be offered";
}

TEST(TransportSwitch, ATransportThatWorksIsKept) {
  TwoRigs rigs;
  const auto shm = *transport::CreateTransport("shm");
  const auto tcp = *transport::CreateTransport("tcp");
  const auto client = rigs.NewClient(shm.get(), tcp.get());
  rigs.ReadAll(*client, 0);
  EXPECT_EQ(client->statistics().switches, 0);
  EXPECT_EQ(client->statistics().transports[0].rests, 0);
  EXPECT_EQ(client->statistics().transports[1].connections, 0);
}

}  // namespace
}  // namespace shoal::client

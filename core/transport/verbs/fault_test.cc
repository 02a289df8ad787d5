// Connections over a fabric that makes errors, from seeds. Whatever happens: every operation
// completes exactly once, what completes successfully did happen, each side learns of the end once,
// nobody touches memory after Close, and nothing is left on the devices.
#include "absl/time/clock.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/transport/verbs/testing/loaded_hosts.h"

namespace shoal::transport {
namespace {

class VerbsFaults : public testing::TestWithParam<uint64_t> {
 protected:
  uint64_t seed() const { return TestSeed() * 1000 + GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Seeds, VerbsFaults, testing::Range<uint64_t>(0, 8));

TEST_P(VerbsFaults, WithoutFaultsEverythingCompletesWell) {
  TwoHosts run(seed(), 2);
  run.Drive([] { return false; });
  EXPECT_EQ(run.a->written.size(), static_cast<size_t>(kSlots));
  EXPECT_EQ(run.b->written.size(), static_cast<size_t>(kSlots));
  run.CloseAndAwaitEnds();
  EXPECT_TRUE(run.b->end.ok()) << Describe(run.b->end);
}

TEST_P(VerbsFaults, AnErrorCompletionEndsTheConnectionAndOpensWhatIsUnknown) {
  constexpr std::pair<ibv_wc_status, const char*> kStatuses[] = {
      {IBV_WC_LOC_QP_OP_ERR, "local"},
      {IBV_WC_LOC_PROT_ERR, "local"},
      {IBV_WC_REM_INV_REQ_ERR, "refused_by_peer"},
      {IBV_WC_REM_ACCESS_ERR, "refused_by_peer"},
      {IBV_WC_REM_OP_ERR, "refused_by_peer"},
      {IBV_WC_RETRY_EXC_ERR, "no_answer"},
      {IBV_WC_RNR_RETRY_EXC_ERR, "peer_not_ready"}};
  for (size_t i = 0; i < std::size(kStatuses); ++i) {
    const auto& [status, kind] = kStatuses[i];
    TwoHosts run(seed() + 100 * i);
    Random random(seed() + i);
    run.fabric.faults().FailRequest(static_cast<int64_t>(random.Below(200)), status);
    run.Drive([&] { return run.a->closed || run.b->closed; });
    ASSERT_TRUE(run.a->closed || run.b->closed);
    run.AwaitEnds();
    EXPECT_FALSE(run.a->end.ok() && run.b->end.ok());
    // At whichever of the two posted that request.
    std::map<std::string, int64_t> errors = run.a->side.transport().statistics().device_errors;
    errors.merge(run.b->side.transport().statistics().device_errors);
    EXPECT_TRUE(errors.contains(kind)) << ibv_wc_status_str(status);
    run.ExpectUntouchedAfterClose();
  }
}

TEST_P(VerbsFaults, ABatchThatIsTakenInPartEndsTheConnection) {
  for (uint64_t round = 0; round < 4; ++round) {
    TwoHosts run(seed() + 100 * round);
    Random random(seed() + round);
    run.fabric.faults().FailPost(static_cast<int64_t>(random.Below(200)));
    run.Drive([&] { return run.a->closed || run.b->closed; });
    ASSERT_TRUE(run.a->closed || run.b->closed);
    run.AwaitEnds();
    run.ExpectUntouchedAfterClose();
  }
}

TEST_P(VerbsFaults, ReorderedCompletionsAndLateEventsDoNoHarm) {
  TwoHosts run(seed(), 2);
  run.fabric.faults().SetRandom({.lost_event = 0.2, .late_event = 0.3, .late_receive = 0.2});
  run.Drive([] { return false; });
  EXPECT_EQ(run.a->written.size(), static_cast<size_t>(kSlots));
  EXPECT_EQ(run.b->written.size(), static_cast<size_t>(kSlots));
  run.CloseAndAwaitEnds();
}

TEST_P(VerbsFaults, ReceivesHeldBackBehindSendsDoNoHarm) {
  TwoHosts run(seed());
  for (int round = 0; round < 10; ++round) {
    run.fabric.HoldReceives(round % 2 == 0);
    const absl::Time until = RealClock().Now() + absl::Milliseconds(5);
    run.Drive([&] { return RealClock().Now() > until; });
  }
  run.fabric.HoldReceives(false);
  run.Drive([] { return false; });
  EXPECT_EQ(run.a->written.size(), static_cast<size_t>(kSlots));
  run.CloseAndAwaitEnds();
}

TEST_P(VerbsFaults, ALostDoorbellIsLostAloneAndTheDataIsThere) {
  TwoHosts run(seed());
  run.fabric.faults().SetRandom({.lost_receive = 0.05});
  run.Drive([] { return false; });
  EXPECT_EQ(run.a->written.size(), static_cast<size_t>(kSlots));
  run.CloseAndAwaitEnds();
  EXPECT_GT(run.b->bells, 0);
}

TEST_P(VerbsFaults, ALinkThatFlapsIsWaitedFor) {
  TransportOptions options = FastOptions();
  options.verbs.ack_timeout = 12;  // 17 ms
  options.verbs.retry_count = 6;
  TwoHosts run(seed(), 1, options);
  Random random(seed());
  for (int round = 0; round < 4; ++round) {
    const absl::Time until = RealClock().Now() + absl::Milliseconds(2);
    run.Drive([&] { return RealClock().Now() > until; });
    const std::string device = random.Below(2) == 0 ? "left0" : "right0";
    run.fabric.SetLink(device, 1, false);
    absl::SleepFor(absl::Milliseconds(random.Between(0, 20)));
    run.fabric.SetLink(device, 1, true);
  }
  run.Drive([] { return false; });
  EXPECT_EQ(run.a->written.size(), static_cast<size_t>(kSlots));
  EXPECT_EQ(run.b->written.size(), static_cast<size_t>(kSlots));
  run.CloseAndAwaitEnds();
}

TEST_P(VerbsFaults, ALinkThatStaysDownEndsBothSides) {
  TwoHosts run(seed());
  const absl::Time until = RealClock().Now() + absl::Milliseconds(2);
  run.Drive([&] { return RealClock().Now() > until; });
  run.fabric.SetLink(seed() % 2 == 0 ? "left0" : "right0", 1, false);
  run.AwaitEnds();
  EXPECT_FALSE(run.a->end.ok());
  EXPECT_FALSE(run.b->end.ok());
  run.ExpectUntouchedAfterClose();
}

TEST_P(VerbsFaults, AnIdleLinkThatGoesDownIsNoticedByTheKeepAlive) {
  TwoHosts run(seed());
  run.fabric.SetLink("left0", 1, false);
  run.AwaitEnds();
  EXPECT_FALSE(run.a->end.ok());
  EXPECT_FALSE(run.b->end.ok());
}

TEST_P(VerbsFaults, ARemovedDeviceEndsBothSides) {
  TwoHosts run(seed());
  const absl::Time until = RealClock().Now() + absl::Milliseconds(2);
  run.Drive([&] { return RealClock().Now() > until; });
  run.fabric.RemoveDevice(seed() % 2 == 0 ? "left0" : "right0");
  run.AwaitEnds();
  EXPECT_FALSE(run.a->end.ok());
  EXPECT_FALSE(run.b->end.ok());
  run.ExpectUntouchedAfterClose();
}

TEST_P(VerbsFaults, QueuePairsInErrorEndBothSidesUnderLoadAndIdle) {
  for (const bool idle : {false, true}) {
    TwoHosts run(seed());
    const absl::Time until = RealClock().Now() + absl::Milliseconds(2);
    run.Drive([&] { return idle || RealClock().Now() > until; });
    run.fabric.BreakQueuePairs(seed() % 2 == 0 ? "left0" : "right0");
    run.AwaitEnds();
    EXPECT_FALSE(run.a->end.ok());
    EXPECT_FALSE(run.b->end.ok());
    run.ExpectUntouchedAfterClose();
  }
}

// Both sides of a handshake end in time, whatever the outcome.
TEST_P(VerbsFaults, HandshakesUnderFaultsEndOneWayOrTheOther) {
  int connected = 0;
  constexpr int kRounds = 12;
  FakeFabric fabric({.seed = seed()});
  {
    auto one = CreateVerbsTransport(FastOptions(),
                                    fabric.AddHost({DrawDevice(seed(), "left0", "10.0.0.1")}));
    auto two = CreateVerbsTransport(FastOptions(),
                                    fabric.AddHost({DrawDevice(seed(), "right0", "10.0.0.2")}));
    ASSERT_TRUE(one.ok() && two.ok());
    Side a(*std::move(one));
    Side b(*std::move(two));
    auto region = b.Allocate(kMiB, Access::kRemoteWrite);
    fabric.faults().SetRandom(
        {.request = 0.1, .post = 0.05, .lost_event = 0.1, .late_receive = 0.2});
    for (int round = 0; round < kRounds; ++round) {
      ConnectionOptions from = a.Options();
      ConnectionOptions to = b.Options({region});
      from.handshake_timeout = to.handshake_timeout = absl::Milliseconds(150);
      auto connector = a.transport().Offer(from);
      ASSERT_TRUE(connector.ok()) << Describe(connector.status());
      auto acceptance = b.transport().Accept((*connector)->offer(), to);
      if (!acceptance.ok()) {
        continue;  // the windows could not be bound
      }
      auto connection = (*connector)->Complete(acceptance->answer);
      connected += connection.ok() ? 1 : 0;
      if (connection.ok()) {
        (*connection)->Close();
        a.CollectUntilClosed((*connection)->id());
      }
      EXPECT_EQ(b.CollectUntilClosed(acceptance->connection->id()).back().kind,
                Event::Kind::kClosed);
    }
  }
  EXPECT_GT(connected, 0);
  EXPECT_EQ(fabric.live(), LiveObjects{});
}

TEST_P(VerbsFaults, AFurtherRailMayFailAndItsReadsGoOverTheFirst) {
  for (const bool removed : {false, true}) {
    TwoHosts run(seed(), 2);
    const absl::Time until = RealClock().Now() + absl::Milliseconds(2);
    run.Drive([&] { return RealClock().Now() > until; });
    if (removed) {
      run.fabric.RemoveDevice("right1");
      run.AwaitEnds();  // losing a device ends what used it
      continue;
    }
    run.fabric.SetLink("left1", 1, false);
    run.Drive([] { return false; });
    EXPECT_EQ(run.a->written.size(), static_cast<size_t>(kSlots));
    EXPECT_FALSE(run.a->closed) << Describe(run.a->end);
    run.CloseAndAwaitEnds();
  }
}

TEST_P(VerbsFaults, AllAtOnceAndNothingHangs) {
  for (uint64_t round = 0; round < 4; ++round) {
    TwoHosts run(seed() + 100 * round, 1 + static_cast<int>(round % 2));
    run.fabric.faults().SetRandom({.request = 0.002,
                                   .post = 0.001,
                                   .lost_event = 0.1,
                                   .late_event = 0.2,
                                   .late_receive = 0.2});
    run.Drive([&] { return run.a->closed || run.b->closed; });
    if (!run.a->closed && !run.b->closed) {
      run.a->connection->Close();
    }
    run.AwaitEnds();
    run.ExpectUntouchedAfterClose();
  }
}

// Every call that can run out of something does so once, in turn: the result is an error, not a
// leak and not the end of the process.
TEST(VerbsExhaustion, EveryFailingCallIsAnErrorAndLeavesNothing) {
  for (const FakeCall call :
       {FakeCall::kCreateQp, FakeCall::kCreateCq, FakeCall::kRegMr, FakeCall::kAllocMw,
        FakeCall::kAllocPd, FakeCall::kOpenDevice, FakeCall::kModifyQp}) {
    bool failed = true;
    int64_t after = 0;
    for (; failed; ++after) {
      ASSERT_LT(after, 100);
      FakeFabric fabric({.seed = 7});
      const auto one = fabric.AddHost({FakeDevice::Ethernet("left", "10.0.0.1")});
      const auto two = fabric.AddHost({FakeDevice::Ethernet("right", "10.0.0.2")});
      fabric.faults().FailCall(call, after);
      if (call == FakeCall::kCreateQp) {
        // A refused queue pair is tried once more, with less.
        fabric.faults().FailCall(call, after + 1);
      }
      const auto attempt = [&]() -> absl::Status {
        SHOAL_ASSIGN_OR_RETURN(auto a, CreateVerbsTransport(FastOptions(), one));
        SHOAL_ASSIGN_OR_RETURN(auto b, CreateVerbsTransport(FastOptions(), two));
        SHOAL_ASSIGN_OR_RETURN(auto queue_a, a->CreateQueue());
        SHOAL_ASSIGN_OR_RETURN(auto queue_b, b->CreateQueue());
        SHOAL_ASSIGN_OR_RETURN(auto region_a, a->Allocate(kMiB, Access::kRemoteWrite));
        SHOAL_ASSIGN_OR_RETURN(auto region_b, b->Allocate(kMiB, Access::kRemoteWrite));
        const ConnectionOptions from = {.queue = queue_a.get(),
                                        .exposed = {region_a},
                                        .peer = "server-1",
                                        .handshake_timeout = absl::Milliseconds(200)};
        const ConnectionOptions to = {.queue = queue_b.get(),
                                      .exposed = {region_b},
                                      .peer = "worker-1",
                                      .handshake_timeout = absl::Milliseconds(200)};
        SHOAL_ASSIGN_OR_RETURN(auto connector, a->Offer(from));
        SHOAL_ASSIGN_OR_RETURN(auto acceptance, b->Accept(connector->offer(), to));
        SHOAL_ASSIGN_OR_RETURN(auto connection, connector->Complete(acceptance.answer));
        return absl::OkStatus();
      };
      const absl::Status status = attempt();
      failed = !status.ok();
      EXPECT_FALSE(absl::IsInternal(status)) << Describe(status);
      EXPECT_EQ(fabric.live(), LiveObjects{}) << Describe(status);
    }
    EXPECT_GT(after, 1) << "it was never called";
  }
}

}  // namespace
}  // namespace shoal::transport

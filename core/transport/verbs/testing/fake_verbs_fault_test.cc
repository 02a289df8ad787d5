// The faults to order of a fake fabric, and links and devices that go.

#include "core/transport/verbs/testing/fake_verbs_end.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(FakeVerbsFaults, TheRequestNamedFailsAndMayHaveBeenExecuted) {
  int executed = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Link link(seed);
    link.a.Put(0, "x");
    link.fabric.faults().FailRequest(1, IBV_WC_REM_OP_ERR);
    for (uint64_t id = 0; id < 3; ++id) {
      link.a.Post(link.Write(id, 0, id, 1));
    }
    ASSERT_TRUE(link.fabric.RunUntilIdle());
    EXPECT_THAT(Outcomes(link.a.Poll()), ElementsAre("0:success", "1:remote operation error",
                                                     "2:Work Request Flushed Error"));
    EXPECT_EQ(link.b.Text(0, 1), "x");
    executed += link.b.Text(1, 1) == "x" ? 1 : 0;
  }
  EXPECT_GT(executed, 0);
  EXPECT_LT(executed, 40);
}

TEST(FakeVerbsFaults, ABatchIsRefusedFromTheRequestNamedOn) {
  Link link;
  link.fabric.faults().FailPost(2, ENOMEM);
  End::Batch batch = link.a.Make({link.Write(0, 0, 0, 1), link.Write(1, 0, 0, 1),
                                  link.Write(2, 0, 0, 1), link.Write(3, 0, 0, 1)});
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(link.a.api->PostSend(link.a.qp, batch.requests.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &batch.requests[2]);
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(Outcomes(link.a.Poll()), ElementsAre("0:success", "1:success"));
}

TEST(FakeVerbsFaults, EventsAreLostOrLate) {
  Link link;
  link.fabric.faults().LoseEvents(1);
  link.a.api->ReqNotifyCq(link.a.cq);
  link.a.Post(link.Write(0, 0, 0, 1));
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_FALSE(Readable(link.a.channel->fd));
  link.fabric.faults().SetRandom({.late_event = 1});
  link.a.api->ReqNotifyCq(link.a.cq);
  link.a.Post(link.Write(0, 0, 0, 1));
  while (link.a.Poll().size() < 1) {
    ASSERT_TRUE(link.fabric.Step());
  }
  while (!Readable(link.a.channel->fd)) {
    ASSERT_TRUE(link.fabric.Step());
  }
}

TEST(FakeVerbsFaults, ReceivesAreHeldWhileSendsGoOn) {
  Link link;
  link.b.PostReceive(7, 0, 8);
  link.fabric.HoldReceives(true);
  link.a.Post({.id = 1, .bytes = 8});
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(link.a.Poll(), SizeIs(1));
  EXPECT_THAT(link.b.Poll(), IsEmpty());
  link.fabric.HoldReceives(false);
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(link.b.Poll(), SizeIs(1));
}

TEST(FakeVerbsFaults, ADoorbellIsLostWithItsReceive) {
  Link link;
  for (uint64_t id = 1; id <= 2; ++id) {
    link.b.PostReceive(id, 0, 8);
    Work ring = link.Write(id, 0, 0, 8);
    ring.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    link.a.Post(ring);
  }
  link.a.Put(0, "arrived");
  link.fabric.faults().LoseReceives(1);
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(Outcomes(link.a.Poll()), ElementsAre("1:success", "2:success"));
  EXPECT_THAT(Outcomes(link.b.Poll()), ElementsAre("2:success"));
  EXPECT_EQ(link.b.Text(0, 7), "arrived");
}

TEST(FakeVerbsFaults, AShortLossOfTheLinkIsRepairedByRepeats) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    Link link(seed, {.bytes = 1 << 20}, {.bytes = 1 << 20});
    std::ranges::fill(link.a.memory, std::byte{5});
    link.a.Post(link.Write(1, 0, 0, 1 << 20));
    for (uint64_t step = 0; step < seed % 8; ++step) {
      ASSERT_TRUE(link.fabric.Step());
    }
    link.fabric.SetLink(seed % 2 == 0 ? "left" : "right", 1, false);
    for (int step = 0; step < 4; ++step) {
      link.fabric.Step();
    }
    link.fabric.SetLink(seed % 2 == 0 ? "left" : "right", 1, true);
    ASSERT_TRUE(link.fabric.RunUntilIdle());
    EXPECT_THAT(Outcomes(link.a.Poll()), ElementsAre("1:success"));
    EXPECT_EQ(link.a.memory, link.b.memory);
  }
}

TEST(FakeVerbsFaults, ALinkThatStaysDownEndsWhatWaitsWhoseOutcomeIsOpen) {
  int arrived = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Link link(seed);
    link.a.Put(0, "x");
    link.a.Post(link.Write(1, 0, 0, 1));
    for (uint64_t step = 0; step < seed % 3; ++step) {
      link.fabric.Step();
    }
    link.fabric.SetLink("right", 1, false);
    ASSERT_TRUE(link.fabric.RunUntilIdle());
    const std::vector<ibv_wc> done = link.a.Poll();
    ASSERT_THAT(done, SizeIs(1));
    if (done[0].status != IBV_WC_SUCCESS) {
      EXPECT_EQ(done[0].status, IBV_WC_RETRY_EXC_ERR);
      arrived += link.b.Text(0, 1) == "x" ? 1 : 0;
    } else {
      EXPECT_EQ(link.b.Text(0, 1), "x");
    }
    ibv_async_event event = {};
    ASSERT_EQ(link.b.api->GetAsyncEvent(link.b.context, &event), 0);
    EXPECT_EQ(event.event_type, IBV_EVENT_PORT_ERR);
    link.b.api->AckAsyncEvent(&event);
    ibv_port_attr port = {};
    ASSERT_EQ(link.b.api->QueryPort(link.b.context, 1, &port), 0);
    EXPECT_EQ(port.state, IBV_PORT_DOWN);
  }
  EXPECT_GT(arrived, 0) << "an error must not mean that nothing was written";
}

TEST(FakeVerbsFaults, ARemovedDeviceFallsSilent) {
  Link link;
  link.a.Post(link.Write(1, 0, 0, 8));
  link.fabric.RemoveDevice("left");
  link.b.Post({.id = 2, .opcode = IBV_WR_RDMA_WRITE});
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(link.a.Poll(), IsEmpty());
  EXPECT_THAT(Outcomes(link.b.Poll()), ElementsAre("2:transport retry counter exceeded"));
  ibv_async_event event = {};
  ASSERT_EQ(link.a.api->GetAsyncEvent(link.a.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_DEVICE_FATAL);
  link.a.api->AckAsyncEvent(&event);
  EXPECT_EQ(link.a.SetState(IBV_QPS_ERR), EIO);
  EXPECT_EQ(link.a.api->RegMr(link.a.pd, link.a.memory.data(), 8, 0), nullptr);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(link.a.Post(link.Write(1, 0, 0, 8)), 0) << "nobody is there to refuse it";
  EXPECT_THAT(link.a.api->DeviceNames(), IsEmpty());
  EXPECT_EQ(link.a.api->OpenDevice("left"), nullptr);
}

TEST(FakeVerbsFaults, BrokenQueuePairsFlushWhatTheyHold) {
  Link link;
  link.a.PostReceive(7, 0, 8);
  link.fabric.BreakQueuePairs("left");
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(Outcomes(link.a.Poll()), ElementsAre("7:Work Request Flushed Error"));
  EXPECT_EQ(link.a.qp->state, IBV_QPS_ERR);
  EXPECT_EQ(link.b.qp->state, IBV_QPS_RTS);
}

TEST(FakeVerbsFaults, RandomFaultsComeFromTheSeed) {
  const auto run = [](uint64_t seed) {
    Link link(seed);
    link.fabric.faults().SetRandom({.request = 0.1, .post = 0.1, .late_receive = 0.5});
    std::vector<std::string> log;
    for (uint64_t id = 1; id <= 12; ++id) {
      link.b.PostReceive(100 + id, 0, 8);
      log.push_back(std::to_string(link.a.Post({.id = id, .bytes = 8})));
    }
    EXPECT_TRUE(link.fabric.RunUntilIdle());
    for (const std::vector<ibv_wc>& completions : {link.a.Poll(), link.b.Poll()}) {
      for (const std::string& outcome : Outcomes(completions)) {
        log.push_back(outcome);
      }
    }
    return log;
  };
  std::set<std::vector<std::string>> logs;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto log = run(seed);
    EXPECT_EQ(log, run(seed));
    logs.insert(log);
  }
  EXPECT_GT(logs.size(), 10u);
}

}  // namespace
}  // namespace shoal::transport

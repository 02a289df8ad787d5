#include "core/transport/verbs/testing/fake_verbs.h"

#include <set>

#include "core/base/random.h"
#include "core/transport/verbs/testing/fake_verbs_end.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<uint64_t> Ids(const std::vector<ibv_wc>& completions) {
  std::vector<uint64_t> ids;
  for (const ibv_wc& completion : completions) {
    EXPECT_EQ(completion.status, IBV_WC_SUCCESS);
    ids.push_back(completion.wr_id);
  }
  return ids;
}

TEST(FakeVerbs, NothingHappensWithinAPost) {
  Link link;
  link.a.Put(0, "data");
  ASSERT_EQ(link.a.Post(link.Write(1, 0, 0, 4)), 0);
  EXPECT_THAT(link.a.Poll(), IsEmpty());
  EXPECT_NE(link.b.Text(0, 4), "data");
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_EQ(link.b.Text(0, 4), "data");
  EXPECT_THAT(Ids(link.a.Poll()), ElementsAre(1));
  EXPECT_EQ(link.fabric.executed(), 1);
}

TEST(FakeVerbs, AMessageArrivesInTheNextReceive) {
  Link link;
  link.a.Put(0, "helloworld");
  link.b.PostReceive(7, 100, 50);
  link.b.PostReceive(8, 200, 50);
  link.a.Post({.id = 1, .opcode = IBV_WR_SEND, .bytes = 5, .local = 0});
  link.a.Post(
      {.id = 2, .opcode = IBV_WR_SEND_WITH_IMM, .bytes = 5, .local = 5, .immediate = 0xABCD});
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  const std::vector<ibv_wc> sent = link.a.Poll();
  EXPECT_THAT(Ids(sent), ElementsAre(1, 2));
  EXPECT_EQ(sent[0].opcode, IBV_WC_SEND);
  const std::vector<ibv_wc> received = link.b.Poll();
  ASSERT_THAT(Ids(received), ElementsAre(7, 8));
  EXPECT_EQ(received[0].opcode, IBV_WC_RECV);
  EXPECT_EQ(received[0].byte_len, 5u);
  EXPECT_EQ(received[0].wc_flags & IBV_WC_WITH_IMM, 0u);
  EXPECT_EQ(received[0].qp_num, link.b.qp->qp_num);
  EXPECT_NE(received[1].wc_flags & IBV_WC_WITH_IMM, 0u);
  EXPECT_EQ(received[1].imm_data, 0xABCDu);
  EXPECT_EQ(link.b.Text(100, 5), "hello");
  EXPECT_EQ(link.b.Text(200, 5), "world");
}

TEST(FakeVerbs, WritesAndReadsMoveBytesAndTakeNoReceive) {
  Link link;
  link.a.Put(0, "written");
  link.b.Put(1000, "to be read");
  link.a.Post(link.Write(1, 0, 50, 7));
  link.a.Post(link.Read(2, 500, 1000, 10));
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  const std::vector<ibv_wc> done = link.a.Poll();
  EXPECT_THAT(Ids(done), ElementsAre(1, 2));
  EXPECT_EQ(done[0].opcode, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(done[1].opcode, IBV_WC_RDMA_READ);
  EXPECT_EQ(link.b.Text(50, 7), "written");
  EXPECT_EQ(link.a.Text(500, 10), "to be read");
  EXPECT_THAT(link.b.Poll(), IsEmpty());
}

TEST(FakeVerbs, ImmediateDataTakesAReceiveWhenTheDataIsInPlace) {
  for (uint64_t seed = 1; seed < 30; ++seed) {
    Link link(seed, {.bytes = 1 << 20}, {.bytes = 1 << 20});
    std::ranges::fill(link.a.memory, std::byte{9});
    link.b.PostReceive(7, 0, 0);
    Work write = link.Write(1, 0, 0, 1 << 20);
    write.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    write.immediate = 42;
    link.a.Post(write);
    std::vector<ibv_wc> rung;
    while (rung.empty() && link.fabric.Step()) {
      rung = link.b.Poll();
    }
    ASSERT_THAT(rung, SizeIs(1));
    EXPECT_EQ(rung[0].opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    EXPECT_EQ(rung[0].imm_data, 42u);
    EXPECT_EQ(rung[0].byte_len, 1u << 20);
    EXPECT_EQ(link.b.memory, link.a.memory);
  }
}

TEST(FakeVerbs, EmptyRequestsNeedNoKey) {
  Link link;
  link.b.PostReceive(7, 0, 0);
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM}) {
    link.a.Post({.id = 1, .opcode = opcode, .remote = 12345, .key = 99});
  }
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(Ids(link.a.Poll()), ElementsAre(1, 1, 1));
  EXPECT_THAT(Ids(link.b.Poll()), ElementsAre(7));
}

TEST(FakeVerbs, InlineDataIsTakenAtThePostAndOtherDataLater) {
  Link link;
  link.a.Put(0, "early");
  Work write = link.Write(1, 0, 0, 5);
  link.a.Post(write);
  write.remote = link.b.Address(100);
  write.flags |= IBV_SEND_INLINE;
  write.local_key = 0;  // nobody looks at it
  link.a.Post(write);
  link.a.Put(0, "later");
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_EQ(link.b.Text(0, 5), "later");
  EXPECT_EQ(link.b.Text(100, 5), "early");
  write.bytes = 65;
  EXPECT_EQ(link.a.Post(write), EINVAL) << "more than the queue pair was made for";
  Work read = link.Read(1, 0, 0, 5);
  read.flags |= IBV_SEND_INLINE;
  EXPECT_EQ(link.a.Post(read), EINVAL);
}

TEST(FakeVerbs, UnsignaledRequestsCompleteInSilence) {
  Link link;
  for (uint64_t id = 1; id <= 6; ++id) {
    Work write = link.Write(id, 0, 0, 8);
    write.flags = id == 4 ? IBV_SEND_SIGNALED : 0;
    ASSERT_EQ(link.a.Post(write), 0);
  }
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(Ids(link.a.Poll()), ElementsAre(4));
  EXPECT_EQ(link.fabric.executed(), 6);
}

TEST(FakeVerbs, RequestsCompleteInOrderWhateverTheSeed) {
  for (uint64_t seed = 1; seed < 60; ++seed) {
    Link link(seed, {.bytes = 1 << 20}, {.bytes = 1 << 20});
    Random random(seed);
    for (uint64_t id = 1; id <= 16; ++id) {
      const auto bytes = static_cast<uint32_t>(random.Below(300'000));
      link.a.Post(random.Below(2) == 0 ? link.Read(id, 0, 0, bytes)
                                       : link.Write(id, 1 << 19, 1 << 19, bytes));
    }
    ASSERT_TRUE(link.fabric.RunUntilIdle());
    const std::vector<uint64_t> ids = Ids(link.a.Poll());
    EXPECT_THAT(ids, SizeIs(16));
    EXPECT_TRUE(std::ranges::is_sorted(ids));
  }
}

TEST(FakeVerbs, TheTwoQueuesOfAnEndInterleaveBySeed) {
  std::set<std::vector<uint64_t>> orders;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Link link(seed);
    for (uint64_t id = 1; id <= 3; ++id) {
      link.b.PostReceive(100 + id, 0, 64);
      link.a.PostReceive(100 + id, 0, 64);
      link.a.Post({.id = id, .bytes = 8});
      link.b.Post({.id = id, .bytes = 8});
    }
    ASSERT_TRUE(link.fabric.RunUntilIdle());
    const std::vector<uint64_t> order = Ids(link.a.Poll());
    EXPECT_THAT(order, SizeIs(6));
    orders.insert(order);
    // The same seed does the same again.
    Link again(seed);
    for (uint64_t id = 1; id <= 3; ++id) {
      again.b.PostReceive(100 + id, 0, 64);
      again.a.PostReceive(100 + id, 0, 64);
      again.a.Post({.id = id, .bytes = 8});
      again.b.Post({.id = id, .bytes = 8});
    }
    ASSERT_TRUE(again.fabric.RunUntilIdle());
    EXPECT_EQ(Ids(again.a.Poll()), order);
  }
  EXPECT_GT(orders.size(), 5u);
}

TEST(FakeVerbs, ALaterWriteMayOvertakeAReadUnlessFenced) {
  const auto read_first = [](uint64_t seed, unsigned int flags) {
    Link link(seed);
    link.b.Put(0, "old");
    link.a.Put(0, "new");
    link.a.Post(link.Read(1, 100, 0, 3));
    Work write = link.Write(2, 0, 0, 3);
    write.flags |= flags;
    link.a.Post(write);
    EXPECT_TRUE(link.fabric.RunUntilIdle());
    return link.a.Text(100, 3) == "old";
  };
  int first = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    first += read_first(seed, 0) ? 1 : 0;
    EXPECT_TRUE(read_first(seed, IBV_SEND_FENCE));
  }
  EXPECT_GT(first, 0);
  EXPECT_LT(first, 40);
}

TEST(FakeVerbs, ThePlaceOfARequestIsFreeWhenItsCompletionHasBeenPolled) {
  Link link(1, {.sends = 4}, {.receives = 2});
  std::vector<Work> works(6, link.Write(1, 0, 0, 8));
  works[3].flags = works[2].flags = works[1].flags = works[0].flags = 0;
  End::Batch batch = link.a.Make(works);
  ibv_send_wr* bad = nullptr;
  EXPECT_EQ(link.a.api->PostSend(link.a.qp, batch.requests.data(), &bad), ENOMEM);
  EXPECT_EQ(bad, &batch.requests[4]) << "four were taken";
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_EQ(link.fabric.executed(), 4);
  EXPECT_EQ(link.a.Post(works[4]), ENOMEM) << "done, but nothing has told so";

  Link signaled(1, {.sends = 4}, {});
  for (int i = 0; i < 4; ++i) {
    Work write = signaled.Write(1, 0, 0, 8);
    write.flags = i == 3 ? IBV_SEND_SIGNALED : 0;
    EXPECT_EQ(signaled.a.Post(write), 0);
  }
  ASSERT_TRUE(signaled.fabric.RunUntilIdle());
  EXPECT_EQ(signaled.a.Post(signaled.Write(1, 0, 0, 8)), ENOMEM) << "not polled yet";
  EXPECT_THAT(signaled.a.Poll(), SizeIs(1));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(signaled.a.Post(signaled.Write(1, 0, 0, 8)), 0) << "one completion frees all four";
  }
  EXPECT_EQ(link.b.PostReceive(1, 0, 8), 0);
  EXPECT_EQ(link.b.PostReceive(2, 0, 8), 0);
  EXPECT_EQ(link.b.PostReceive(3, 0, 8), ENOMEM);
}

TEST(FakeVerbsDeathTest, AnOverrunCompletionQueueEndsTheTest) {
  Link link(1, {.completions = 3}, {});
  for (uint64_t id = 0; id < 4; ++id) {
    link.a.Post(link.Write(id, 0, 0, 8));
  }
  EXPECT_DEATH(link.fabric.RunUntilIdle(), "completions");
}

TEST(FakeVerbs, StaleSendersReachNoQueuePairThatCameByTheNumber) {
  Link link;
  const uint32_t number = link.b.qp->qp_num;
  link.b.DestroyQueuePair();
  link.b.MakeQueuePair();
  EXPECT_NE(link.b.qp->qp_num, number) << "numbers do not come back";
  link.b.DestroyQueuePair();
  link.fabric.SetNextQueuePair(number);
  link.b.MakeQueuePair();
  ASSERT_EQ(link.b.qp->qp_num, number);
  // Even connected to the very same queue pair, the sequence differs.
  ASSERT_EQ(link.b.Initialize(), 0);
  ibv_qp_attr path = link.b.Path(link.a.qp->qp_num, link.a.gid());
  path.rq_psn = 78;
  ASSERT_EQ(link.b.api->ModifyQp(link.b.qp, &path, End::kToReceive), 0);
  link.b.PostReceive(1, 0, 64);
  link.a.Put(0, "stale");
  link.a.Post(link.Write(1, 0, 0, 5));
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(Outcomes(link.a.Poll()), ElementsAre("1:transport retry counter exceeded"));
  EXPECT_NE(link.b.Text(0, 5), "stale");
}

TEST(FakeVerbs, AWorkerThreadMovesThingsOtherwise) {
  FakeFabric fabric({.seed = 3});
  {
    End a(fabric.AddHost({FakeDevice::Ethernet("x", "10.0.0.1")}), "x");
    End b(fabric.AddHost({FakeDevice::Ethernet("x", "10.0.0.2")}), "x");
    a.ConnectTo(b);
    b.ConnectTo(a);
    for (int round = 0; round < 50; ++round) {
      a.Put(0, std::to_string(1000 + round));
      ASSERT_EQ(b.api->ReqNotifyCq(b.cq), 0);
      ASSERT_EQ(b.PostReceive(7, 100, 64), 0);
      ASSERT_EQ(a.Post({.id = 1, .bytes = 4}), 0);
      ibv_cq* cq = nullptr;
      ASSERT_EQ(b.api->GetCqEvent(b.channel, &cq), 0);  // blocks
      b.api->AckCqEvents(cq, 1);
      EXPECT_THAT(b.Poll(), SizeIs(1));
      EXPECT_EQ(b.Text(100, 4), std::to_string(1000 + round));
      while (a.Poll().empty()) {
      }
    }
  }
  EXPECT_EQ(fabric.live(), LiveObjects{});
}

}  // namespace
}  // namespace shoal::transport

// The errors of the fake fabric: which status for what, and their effect on both ends.
#include "core/transport/verbs/testing/fake_verbs_end.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// Returns the status of one request posted by a; the link is idle afterwards.
ibv_wc_status StatusOf(Link& link, const Work& work) {
  EXPECT_EQ(link.a.Post(work), 0);
  EXPECT_TRUE(link.fabric.RunUntilIdle());
  const std::vector<ibv_wc> completions = link.a.Poll();
  EXPECT_THAT(completions, SizeIs(1));
  return completions.empty() ? IBV_WC_GENERAL_ERR : completions[0].status;
}

void ExpectBothInError(const Link& link) {
  EXPECT_EQ(link.a.qp->state, IBV_QPS_ERR);
  EXPECT_EQ(link.b.qp->state, IBV_QPS_ERR);
}

TEST(FakeVerbsErrors, AccessThatTheKeyDoesNotGiveEndsBothEnds) {
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}) {
    const auto expect_refused = [&](Link& link, auto change) {
      link.b.Put(0, "kept");
      Work work = link.Write(1, 0, 0, 16);
      work.opcode = opcode;
      change(work);
      EXPECT_EQ(StatusOf(link, work), IBV_WC_REM_ACCESS_ERR);
      ExpectBothInError(link);
      EXPECT_EQ(link.b.Text(0, 4), "kept");
    };
    Link wrong_key;
    expect_refused(wrong_key, [](Work& work) { work.key ^= 1; });
    Link local_key;
    expect_refused(local_key, [&](Work& work) { work.key = local_key.b.mr->lkey; });
    Link past_the_end;
    expect_refused(past_the_end, [](Work& work) { work.remote += 4096 - 15; });
    Link before_the_start;
    expect_refused(before_the_start, [](Work& work) { work.remote -= 1; });
    Link around;
    expect_refused(around, [](Work& work) { work.remote = ~uint64_t{0} - 3; });
    Link no_right(1, {}, {.access = IBV_ACCESS_LOCAL_WRITE});
    expect_refused(no_right, [](Work&) {});
    Link other_right(
        1, {},
        {.access = IBV_ACCESS_LOCAL_WRITE | (opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_WRITE
                                                                        : IBV_ACCESS_REMOTE_READ)});
    expect_refused(other_right, [](Work&) {});
    Link deregistered;
    const uint32_t key = deregistered.b.mr->rkey;
    ASSERT_EQ(deregistered.b.api->DeregMr(deregistered.b.mr), 0);
    deregistered.b.mr = deregistered.b.api->RegMr(deregistered.b.pd, deregistered.b.memory.data(),
                                                  4096, kEverything);
    expect_refused(deregistered, [&](Work& work) { work.key = key; });
  }
}

TEST(FakeVerbsErrors, KeysOfAnotherProtectionDomainGiveNothing) {
  Link link;
  ibv_pd* other = link.b.api->AllocPd(link.b.context);
  ibv_mr* region = link.b.api->RegMr(other, link.b.memory.data(), 4096, kEverything);
  Work write = link.Write(1, 0, 0, 8);
  write.key = region->rkey;
  EXPECT_EQ(StatusOf(link, write), IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(link.b.api->DeallocPd(other), EBUSY);
  EXPECT_EQ(link.b.api->DeregMr(region), 0);
  EXPECT_EQ(link.b.api->DeallocPd(other), 0);
}

TEST(FakeVerbsErrors, AQueuePairWithoutTheRightIsAnInvalidRequest) {
  Link link(1, {}, {.queue_pair_access = IBV_ACCESS_REMOTE_WRITE});
  EXPECT_EQ(StatusOf(link, link.Read(1, 0, 0, 8)), IBV_WC_REM_INV_REQ_ERR);
  ExpectBothInError(link);
  Link writes(1, {}, {.queue_pair_access = IBV_ACCESS_REMOTE_READ});
  EXPECT_EQ(StatusOf(writes, writes.Write(1, 0, 0, 8)), IBV_WC_REM_INV_REQ_ERR);
}

TEST(FakeVerbsErrors, WrongLocalKeysEndThePosterAlone) {
  for (const bool soft_roce : {false, true}) {
    Link read(1, {}, {}, soft_roce);
    Work work = read.Read(1, 0, 0, 8);
    work.local_key = read.a.mr->rkey;
    EXPECT_EQ(StatusOf(read, work), IBV_WC_LOC_PROT_ERR);
    EXPECT_EQ(read.a.qp->state, IBV_QPS_ERR);
    EXPECT_EQ(read.b.qp->state, IBV_QPS_RTS);
    Link write(1, {}, {}, soft_roce);
    work = write.Write(1, 0, 0, 8);
    work.local_key = 7;
    EXPECT_EQ(StatusOf(write, work), soft_roce ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_PROT_ERR);
  }
  Link into_read_only(1, {.access = IBV_ACCESS_REMOTE_READ}, {});
  EXPECT_EQ(StatusOf(into_read_only, into_read_only.Read(1, 0, 0, 8)), IBV_WC_LOC_PROT_ERR);
}

TEST(FakeVerbsErrors, AReceiverThatIsNotReadyIsWaitedForSoManyTimes) {
  Link link;
  EXPECT_EQ(StatusOf(link, {.id = 1, .bytes = 8}), IBV_WC_RNR_RETRY_EXC_ERR);
  EXPECT_EQ(link.b.qp->state, IBV_QPS_RTS);
  Link ringing;
  Work ring = ringing.Write(1, 0, 0, 8);
  ring.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  EXPECT_EQ(StatusOf(ringing, ring), IBV_WC_RNR_RETRY_EXC_ERR);

  Link patient(1, {.not_ready_retries = 7}, {});
  patient.a.Post({.id = 1, .bytes = 8});
  EXPECT_FALSE(patient.fabric.RunUntilIdle(1000)) << "for ever";
  patient.b.PostReceive(7, 0, 64);
  EXPECT_TRUE(patient.fabric.RunUntilIdle());
  EXPECT_THAT(Outcomes(patient.a.Poll()), ElementsAre("1:success"));

  // Soft-RoCE's acknowledgement timer ends it nevertheless.
  Link soft(1, {.not_ready_retries = 7}, {}, true);
  EXPECT_EQ(StatusOf(soft, {.id = 1, .bytes = 8}), IBV_WC_RETRY_EXC_ERR);
}

TEST(FakeVerbsErrors, AMessageThatDoesNotFitTheReceiveEndsBothEnds) {
  Link link;
  link.b.PostReceive(7, 0, 7);
  EXPECT_EQ(StatusOf(link, {.id = 1, .bytes = 8}), IBV_WC_REM_INV_REQ_ERR);
  EXPECT_THAT(Outcomes(link.b.Poll()), ElementsAre("7:local length error"));
  ExpectBothInError(link);
}

TEST(FakeVerbsErrors, ThePortsLargestMessageIsTheLimit) {
  Link link(1, {}, {}, false, 1000);
  EXPECT_EQ(StatusOf(link, link.Write(1, 0, 0, 1000)), IBV_WC_SUCCESS);
  EXPECT_EQ(StatusOf(link, link.Write(1, 0, 0, 1001)), IBV_WC_LOC_LEN_ERR);
  Link soft(1, {}, {}, true, 1000);
  EXPECT_EQ(StatusOf(soft, soft.Write(1, 0, 0, 1001)), IBV_WC_SUCCESS);
}

TEST(FakeVerbsErrors, MoreReadsThanTheTargetTakesAreAnInvalidRequest) {
  // Whether that many are outstanding there depends on how fast they are answered.
  const auto fails = [](uint64_t seed, uint8_t source, uint8_t target) {
    Link link(seed, {.bytes = 1 << 20, .reads = source}, {.bytes = 1 << 20, .reads = target});
    for (uint64_t id = 1; id <= 8; ++id) {
      link.a.Post(link.Read(id, 0, 0, 1 << 20));
    }
    EXPECT_TRUE(link.fabric.RunUntilIdle());
    const std::vector<ibv_wc> done = link.a.Poll();
    EXPECT_THAT(done, SizeIs(8));
    return std::ranges::any_of(
        done, [](const ibv_wc& wc) { return wc.status == IBV_WC_REM_INV_REQ_ERR; });
  };
  int failed = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    failed += fails(seed, 4, 2) ? 1 : 0;
    EXPECT_FALSE(fails(seed, 2, 2));
  }
  EXPECT_GT(failed, 10);
}

TEST(FakeVerbsErrors, PacketsLargerThanThePeersPathAreAnInvalidRequest) {
  Link link(1, {.mtu = IBV_MTU_2048}, {.mtu = IBV_MTU_1024});
  EXPECT_EQ(StatusOf(link, link.Write(1, 0, 0, 1024)), IBV_WC_SUCCESS);
  EXPECT_EQ(StatusOf(link, link.Write(1, 0, 0, 1025)), IBV_WC_REM_INV_REQ_ERR);
}

TEST(FakeVerbsErrors, APeerThatIsGoneOrInErrorIsKnownByTheRetries) {
  Link error;
  ASSERT_EQ(error.b.SetState(IBV_QPS_ERR), 0);
  EXPECT_EQ(StatusOf(error, error.Write(1, 0, 0, 8)), IBV_WC_RETRY_EXC_ERR);
  Link reset;
  ASSERT_EQ(reset.b.SetState(IBV_QPS_RESET), 0);
  EXPECT_EQ(StatusOf(reset, reset.Write(1, 0, 0, 8)), IBV_WC_RETRY_EXC_ERR);
  Link gone;
  gone.b.DestroyQueuePair();
  EXPECT_EQ(StatusOf(gone, gone.Write(1, 0, 0, 8)), IBV_WC_RETRY_EXC_ERR);
  Link for_ever(1, {.retries = 7}, {});
  for_ever.b.DestroyQueuePair();
  for_ever.a.Post(for_ever.Write(1, 0, 0, 8));
  EXPECT_FALSE(for_ever.fabric.RunUntilIdle(1000));
}

TEST(FakeVerbsErrors, InErrorEverythingOutstandingIsFlushedOnce) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Link link(seed);
    for (uint64_t id = 1; id <= 5; ++id) {
      Work write = link.Write(id, 0, 0, 8);
      write.flags = 0;  // unsignaled ones as well
      link.a.Post(write);
      link.a.PostReceive(100 + id, 0, 8);
    }
    ASSERT_EQ(link.a.SetState(IBV_QPS_ERR), 0);
    EXPECT_EQ(link.a.Post(link.Write(6, 0, 0, 8)), 0);
    EXPECT_EQ(link.a.PostReceive(106, 0, 8), 0);
    ASSERT_TRUE(link.fabric.RunUntilIdle());
    std::vector<uint64_t> sends;
    std::vector<uint64_t> receives;
    for (const ibv_wc& completion : link.a.Poll()) {
      EXPECT_EQ(completion.status, IBV_WC_WR_FLUSH_ERR);
      (completion.wr_id > 100 ? receives : sends).push_back(completion.wr_id);
    }
    EXPECT_THAT(sends, ElementsAre(1, 2, 3, 4, 5, 6));
    EXPECT_THAT(receives, ElementsAre(101, 102, 103, 104, 105, 106));
  }
  // Soft-RoCE accepts a receive in error and forgets it.
  Link soft(1, {}, {}, true);
  soft.a.PostReceive(1, 0, 8);
  ASSERT_EQ(soft.a.SetState(IBV_QPS_ERR), 0);
  EXPECT_EQ(soft.a.PostReceive(2, 0, 8), 0);
  ASSERT_TRUE(soft.fabric.RunUntilIdle());
  EXPECT_THAT(Outcomes(soft.a.Poll()), ElementsAre("1:Work Request Flushed Error"));
}

TEST(FakeVerbsErrors, WhatCameBeforeTheFailedRequestCompletesAndTheRestIsFlushed) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    Link link(seed, {.bytes = 1 << 20}, {.bytes = 1 << 20});
    link.a.Post(link.Read(1, 0, 0, 300'000));
    link.a.Post(link.Write(2, 1 << 19, 1 << 19, 200'000));
    Work bad = link.Write(3, 0, 0, 8);
    bad.key ^= 1;
    link.a.Post(bad);
    link.a.Post(link.Write(4, 0, 0, 8));
    link.b.PostReceive(7, 0, 8);
    ASSERT_TRUE(link.fabric.RunUntilIdle());
    EXPECT_THAT(Outcomes(link.a.Poll()),
                ElementsAre("1:success", "2:success", "3:remote access error",
                            "4:Work Request Flushed Error"));
    EXPECT_THAT(Outcomes(link.b.Poll()), ElementsAre("7:Work Request Flushed Error"));
  }
}

TEST(FakeVerbsErrors, ResetTakesEverythingBackAndTheQueuePairServesAgain) {
  Link link;
  link.a.Post(link.Write(1, 0, 0, 8));
  link.a.PostReceive(2, 0, 8);
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  link.a.Post(link.Write(3, 0, 0, 8));
  ASSERT_EQ(link.a.SetState(IBV_QPS_RESET), 0);
  ASSERT_EQ(link.b.SetState(IBV_QPS_RESET), 0);
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(link.a.Poll(), IsEmpty());
  link.a.ConnectTo(link.b);
  link.b.ConnectTo(link.a);
  EXPECT_EQ(StatusOf(link, link.Write(4, 0, 0, 8)), IBV_WC_SUCCESS);
}

TEST(FakeVerbsErrors, AMessageOfAnErrorSaysNothingButIdStatusAndNumber) {
  std::set<int> opcodes;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Link link(seed);
    Work bad = link.Write(3, 0, 0, 8);
    bad.key ^= 1;
    link.a.Post(bad);
    ASSERT_TRUE(link.fabric.RunUntilIdle());
    opcodes.insert(link.a.Poll().at(0).opcode);
  }
  EXPECT_GT(opcodes.size(), 3u);
}

TEST(FakeVerbsErrors, RefusalsRaiseAnEventAtTheRefusingEnd) {
  Link link;
  Work bad = link.Write(1, 0, 0, 8);
  bad.key ^= 1;
  EXPECT_EQ(StatusOf(link, bad), IBV_WC_REM_ACCESS_ERR);
  ibv_async_event event = {};
  ASSERT_EQ(link.b.api->GetAsyncEvent(link.b.context, &event), 0);
  EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
  EXPECT_EQ(event.element.qp, link.b.qp);
  link.b.api->AckAsyncEvent(&event);
}

}  // namespace
}  // namespace shoal::transport

// The objects of the fake fabric: states of queue pairs, windows, events, and the faults to order.
#include <fcntl.h>

#include <thread>

#include "absl/time/clock.h"
#include "core/transport/verbs/testing/fake_verbs_end.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::transport {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(FakeVerbsObjects, StatesFollowEachOtherAndNameWhatTheyNeed) {
  Link link;
  End end(link.a.api, "left");
  ibv_qp_attr attributes = end.Path(link.b.qp->qp_num, link.b.gid());
  attributes.port_num = 1;
  constexpr int kInit = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  const auto modify = [&](ibv_qp_state state, int mask) {
    attributes.qp_state = state;
    return end.api->ModifyQp(end.qp, &attributes, mask);
  };
  EXPECT_EQ(end.PostReceive(1, 0, 8), EINVAL) << "in RESET";
  EXPECT_EQ(end.Post(link.Write(1, 0, 0, 8)), EINVAL);
  EXPECT_EQ(modify(IBV_QPS_RTR, End::kToReceive), EINVAL) << "INIT comes first";
  for (const int missing : {IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_ACCESS_FLAGS}) {
    EXPECT_EQ(modify(IBV_QPS_INIT, kInit & ~missing), EINVAL);
  }
  EXPECT_EQ(modify(IBV_QPS_INIT, kInit | IBV_QP_TIMEOUT), EINVAL) << "more than may be";
  ASSERT_EQ(modify(IBV_QPS_INIT, kInit), 0);
  EXPECT_EQ(end.PostReceive(1, 0, 8), 0);
  EXPECT_EQ(end.Post(link.Write(1, 0, 0, 8)), EINVAL);
  EXPECT_EQ(modify(IBV_QPS_RTS, End::kToSend), EINVAL);
  for (const int missing : {IBV_QP_AV, IBV_QP_PATH_MTU, IBV_QP_DEST_QPN, IBV_QP_RQ_PSN,
                            IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER}) {
    EXPECT_EQ(modify(IBV_QPS_RTR, End::kToReceive & ~missing), EINVAL);
  }
  ASSERT_EQ(modify(IBV_QPS_RTR, End::kToReceive), 0);
  EXPECT_EQ(end.Post(link.Write(1, 0, 0, 8)), EINVAL);
  for (const int missing : {IBV_QP_TIMEOUT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_SQ_PSN,
                            IBV_QP_MAX_QP_RD_ATOMIC}) {
    EXPECT_EQ(modify(IBV_QPS_RTS, End::kToSend & ~missing), EINVAL);
  }
  ASSERT_EQ(modify(IBV_QPS_RTS, End::kToSend), 0);
  EXPECT_EQ(end.qp->state, IBV_QPS_RTS);
  EXPECT_EQ(modify(IBV_QPS_INIT, kInit), EINVAL);
  ASSERT_EQ(modify(IBV_QPS_ERR, IBV_QP_STATE), 0);
  EXPECT_EQ(modify(IBV_QPS_RTS, End::kToSend), EINVAL);
  ASSERT_EQ(modify(IBV_QPS_RESET, IBV_QP_STATE), 0);
  ASSERT_EQ(modify(IBV_QPS_INIT, kInit), 0);
}

TEST(FakeVerbsObjects, PathsNeedAnAddressThatLeadsThere) {
  FakeFabric fabric({.manual = true});
  FakeDevice loopback = FakeDevice::Ethernet("lo", "127.0.0.1");
  auto one = fabric.AddHost({FakeDevice::Ethernet("eth", "10.0.0.1"), loopback});
  auto two = fabric.AddHost({FakeDevice::Ethernet("eth", "10.0.0.2"), loopback});
  End here(one, "eth");
  End there(two, "eth");
  End lo_here(one, "lo");
  ASSERT_EQ(here.Initialize(), 0);
  const auto try_path = [](End& end, ibv_qp_attr path) {
    return end.api->ModifyQp(end.qp, &path, End::kToReceive);
  };
  ibv_qp_attr path = here.Path(there.qp->qp_num, there.gid());
  path.ah_attr.grh.sgid_index = 0;
  EXPECT_EQ(try_path(here, path), ENETUNREACH) << "from a link-local address";
  path.ah_attr.grh.sgid_index = 9;
  EXPECT_EQ(try_path(here, path), EINVAL) << "there is no such index";
  path = here.Path(there.qp->qp_num, lo_here.gid());
  EXPECT_EQ(try_path(here, path), ENETUNREACH) << "loopback from elsewhere";
  path = here.Path(there.qp->qp_num, there.gid());
  path.ah_attr.grh.dgid.raw[15] = 99;
  EXPECT_EQ(try_path(here, path), ETIMEDOUT) << "nobody's address";
  path = here.Path(there.qp->qp_num, there.gid());
  path.path_mtu = static_cast<ibv_mtu>(6);
  EXPECT_EQ(try_path(here, path), EINVAL);
  path = here.Path(there.qp->qp_num, there.gid());
  EXPECT_EQ(try_path(here, path), 0);
}

class Windows : public testing::Test {
 protected:
  Windows() : other_(link_.a.api, "left"), target_(link_.b.api, "right") {
    other_.ConnectTo(target_);
    target_.ConnectTo(other_);
    window_ = link_.b.api->AllocMw(link_.b.pd, IBV_MW_TYPE_2);
    SHOAL_CHECK(window_ != nullptr);
    key_ = ibv_inc_rkey(window_->rkey);
  }
  ~Windows() override {
    if (window_ != nullptr) {
      EXPECT_EQ(link_.b.api->DeallocMw(window_), 0);
    }
  }
  // b binds the window to its queue pair.
  std::vector<std::string> Bind(uint32_t key, size_t offset, size_t bytes) {
    EXPECT_EQ(link_.b.PostBind(50, window_, key, offset, bytes), 0);
    EXPECT_TRUE(link_.fabric.RunUntilIdle());
    return Outcomes(link_.b.Poll());
  }
  std::vector<std::string> Write(uint32_t key, size_t to, uint32_t bytes) {
    Work write = link_.Write(1, 0, to, bytes);
    write.key = key;
    EXPECT_EQ(link_.a.Post(write), 0);
    EXPECT_TRUE(link_.fabric.RunUntilIdle());
    return Outcomes(link_.a.Poll());
  }

  Link link_ = Link(1, {}, {.access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND});
  End other_;   // on a's host, connected to
  End target_;  // on b's
  ibv_mw* window_ = nullptr;
  uint32_t key_ = 0;
};

TEST_F(Windows, GiveARangeToOneQueuePair) {
  ASSERT_THAT(Bind(key_, 100, 50), ElementsAre("50:success"));
  EXPECT_EQ(link_.b.api->DeregMr(link_.b.mr), EBUSY);
  link_.a.Put(0, "through the window");
  EXPECT_THAT(Write(key_, 100, 18), ElementsAre("1:success"));
  EXPECT_EQ(link_.b.Text(100, 18), "through the window");
  EXPECT_THAT(Write(key_, 149, 1), ElementsAre("1:success"));
  EXPECT_THAT(Write(key_, 149, 2), ElementsAre("1:remote access error"));
}

TEST_F(Windows, AreNotReachedByTheFormerKeyNorTheRegions) {
  ASSERT_THAT(Bind(key_, 0, 50), ElementsAre("50:success"));
  EXPECT_THAT(Write(link_.b.mr->rkey, 0, 8), ElementsAre("1:remote access error"));
}

TEST_F(Windows, AreNotReachedBeforeTheyAreBound) {
  EXPECT_THAT(Write(window_->rkey, 0, 8), ElementsAre("1:remote access error"));
}

TEST_F(Windows, FailFromAnyOtherQueuePairOfTheSameDomain) {
  // A second queue pair in b's own protection domain, with the key that was not meant for it.
  ASSERT_THAT(Bind(key_, 0, 50), ElementsAre("50:success"));
  ibv_qp* first = link_.b.qp;
  link_.b.MakeQueuePair();
  End thief(link_.a.api, "left");
  thief.ConnectTo(link_.b);
  link_.b.ConnectTo(thief);
  Work write = link_.Write(1, 0, 0, 8);
  write.key = key_;
  write.local_key = thief.mr->lkey;
  ASSERT_EQ(thief.Post(write), 0);
  ASSERT_TRUE(link_.fabric.RunUntilIdle());
  EXPECT_THAT(Outcomes(thief.Poll()), ElementsAre("1:remote access error"));
  link_.b.DestroyQueuePair();
  link_.b.qp = first;
  EXPECT_THAT(Write(key_, 0, 8), ElementsAre("1:success")) << "its own goes on";
}

TEST_F(Windows, EndWhenInvalidatedAndMayBeBoundAgain) {
  ASSERT_THAT(Bind(key_, 0, 50), ElementsAre("50:success"));
  ibv_send_wr request = {};
  request.wr_id = 51;
  request.opcode = IBV_WR_LOCAL_INV;
  request.send_flags = IBV_SEND_SIGNALED;
  request.invalidate_rkey = key_;
  ibv_send_wr* bad = nullptr;
  ASSERT_EQ(link_.b.api->PostSend(link_.b.qp, &request, &bad), 0);
  ASSERT_TRUE(link_.fabric.RunUntilIdle());
  EXPECT_THAT(Outcomes(link_.b.Poll()), ElementsAre("51:success"));
  EXPECT_THAT(Bind(ibv_inc_rkey(key_), 0, 50), ElementsAre("50:success"));
  EXPECT_THAT(Write(key_, 0, 8), ElementsAre("1:remote access error")) << "the former key";
}

TEST_F(Windows, EndWithTheirQueuePair) {
  ASSERT_THAT(Bind(key_, 0, 50), ElementsAre("50:success"));
  link_.b.DestroyQueuePair();
  EXPECT_EQ(link_.b.api->DeregMr(link_.b.mr), 0) << "nothing is bound to it any more";
  link_.b.mr = nullptr;
}

TEST_F(Windows, WrongBindsEndTheQueuePair) {
  EXPECT_THAT(Bind(window_->rkey, 0, 50), ElementsAre("50:memory management operation error"));
  EXPECT_EQ(link_.b.qp->state, IBV_QPS_ERR);
}

TEST_F(Windows, BindsOutsideTheRegionFail) {
  EXPECT_THAT(Bind(key_, 4090, 7), ElementsAre("50:memory management operation error"));
}

TEST_F(Windows, ASecondBindFails) {
  ASSERT_THAT(Bind(key_, 0, 50), ElementsAre("50:success"));
  EXPECT_THAT(Bind(ibv_inc_rkey(key_), 0, 50), ElementsAre("50:memory management operation error"));
}

TEST(FakeVerbsObjects, RegionsMustAllowWindows) {
  Link link(1, {}, {.access = IBV_ACCESS_LOCAL_WRITE});
  ibv_mw* window = link.b.api->AllocMw(link.b.pd, IBV_MW_TYPE_2);
  link.b.PostBind(5, window, ibv_inc_rkey(window->rkey), 0, 8);
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  EXPECT_THAT(Outcomes(link.b.Poll()), ElementsAre("5:memory management operation error"));
  EXPECT_EQ(link.b.api->DeallocMw(window), 0);
}

TEST(FakeVerbsObjects, EventsComeWhenArmedOnceAndForWhatCameSince) {
  Link link;
  const auto write = [&] {
    link.a.Post(link.Write(1, 0, 0, 8));
    ASSERT_TRUE(link.fabric.RunUntilIdle());
  };
  write();
  EXPECT_FALSE(Readable(link.a.channel->fd)) << "not armed";
  ASSERT_EQ(link.a.api->ReqNotifyCq(link.a.cq), 0);
  EXPECT_FALSE(Readable(link.a.channel->fd)) << "what came before must be polled for after arming";
  write();
  EXPECT_TRUE(Readable(link.a.channel->fd));
  write();
  ibv_cq* cq = nullptr;
  ASSERT_EQ(link.a.api->GetCqEvent(link.a.channel, &cq), 0);
  EXPECT_EQ(cq, link.a.cq);
  EXPECT_FALSE(Readable(link.a.channel->fd)) << "one event for each arming";
  link.a.api->AckCqEvents(cq, 1);
  fcntl(link.a.channel->fd, F_SETFL, fcntl(link.a.channel->fd, F_GETFL) | O_NONBLOCK);
  EXPECT_EQ(link.a.api->GetCqEvent(link.a.channel, &cq), EAGAIN);
  EXPECT_THAT(link.a.Poll(), SizeIs(3));
}

TEST(FakeVerbsObjects, DestroyingWaitsForEventsToBeAcknowledged) {
  Link link;
  link.a.api->ReqNotifyCq(link.a.cq);
  link.a.Post(link.Write(1, 0, 0, 8));
  ASSERT_TRUE(link.fabric.RunUntilIdle());
  ibv_cq* cq = nullptr;
  ASSERT_EQ(link.a.api->GetCqEvent(link.a.channel, &cq), 0);
  std::thread acknowledging([&] {
    absl::SleepFor(absl::Milliseconds(30));
    link.a.api->AckCqEvents(cq, 1);
  });
  EXPECT_EQ(link.a.api->DestroyCq(link.a.cq), EBUSY) << "in use by a queue pair";
  link.a.DestroyQueuePair();
  EXPECT_EQ(link.a.api->DestroyCompChannel(link.a.channel), EBUSY);
  EXPECT_EQ(link.a.api->DestroyCq(link.a.cq), 0);
  acknowledging.join();
  link.a.cq = link.a.api->CreateCq(link.a.context, 1, nullptr, link.a.channel);
}

TEST(FakeVerbsObjects, DevicesKeepToTheirLimits) {
  FakeFabric fabric({.manual = true});
  FakeDevice device = FakeDevice::Ethernet("x", "10.0.0.1");
  device.max_region_bytes = 4096;
  device.max_work_requests = 16;
  device.max_completions = 64;
  device.max_inline_bytes = 64;
  device.max_queue_pairs = 1;
  device.windows = false;
  End end(fabric.AddHost({device}), "x");
  std::vector<std::byte> memory(4097);
  EXPECT_EQ(end.api->RegMr(end.pd, memory.data(), 4097, IBV_ACCESS_LOCAL_WRITE), nullptr);
  EXPECT_EQ(end.api->RegMr(end.pd, memory.data(), 4096, IBV_ACCESS_REMOTE_WRITE), nullptr)
      << "who lets others write, writes";
  EXPECT_EQ(end.api->AllocMw(end.pd, IBV_MW_TYPE_2), nullptr);
  EXPECT_EQ(end.api->CreateCq(end.context, 65, nullptr, nullptr), nullptr);
  errno = 0;
  EXPECT_EQ(end.api->RegDmabufMr(end.pd, 0, 4096, 0, 3, 0), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  ibv_qp_init_attr attributes = {};
  attributes.send_cq = attributes.recv_cq = end.cq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {16, 16, 1, 1, 64};
  EXPECT_EQ(end.api->CreateQp(end.pd, &attributes), nullptr);
  EXPECT_EQ(errno, ENOMEM) << "there is one";
  end.DestroyQueuePair();
  attributes.cap.max_send_wr = 17;
  EXPECT_EQ(end.api->CreateQp(end.pd, &attributes), nullptr);
  EXPECT_EQ(errno, EINVAL);
  attributes.cap.max_send_wr = 16;
  attributes.cap.max_inline_data = 65;
  EXPECT_EQ(end.api->CreateQp(end.pd, &attributes), nullptr);
  attributes.cap.max_inline_data = 64;
  end.qp = end.api->CreateQp(end.pd, &attributes);
  EXPECT_NE(end.qp, nullptr);
}

TEST(FakeVerbsObjects, CallsFailToOrder) {
  FakeFabric fabric({.manual = true});
  auto host = fabric.AddHost({FakeDevice::Ethernet("x", "10.0.0.1")});
  End end(host, "x");
  fabric.faults().FailCall(FakeCall::kRegMr, 1, ENOMEM);
  ibv_mr* first = host->RegMr(end.pd, end.memory.data(), 10, 0);
  EXPECT_NE(first, nullptr);
  errno = 0;
  EXPECT_EQ(host->RegMr(end.pd, end.memory.data(), 10, 0), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  fabric.faults().FailCall(FakeCall::kOpenDevice, 0, EACCES);
  EXPECT_EQ(host->OpenDevice("x"), nullptr);
  EXPECT_EQ(errno, EACCES);
  fabric.faults().FailCall(FakeCall::kModifyQp, 0, EINVAL);
  EXPECT_EQ(end.Initialize(), EINVAL);
  EXPECT_EQ(end.Initialize(), 0);
  EXPECT_EQ(host->DeregMr(first), 0);
}

}  // namespace
}  // namespace shoal::transport

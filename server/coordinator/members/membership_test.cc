#include "server/coordinator/members/membership.h"

#include <functional>
#include <set>

#include "core/base/clock.h"
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/members/metrics_targets.h"

namespace shoal::server {
namespace {

using ::testing::HasSubstr;

proto::RegisterRequest Request(proto::Role role, int64_t pid, uint64_t nonce = 0) {
  proto::RegisterRequest request;
  request.set_role(role);
  request.set_host("alpha");
  request.set_pid(pid);
  request.set_version("1.0");
  request.set_nonce(nonce);
  if (role == proto::ROLE_SERVER) {
    request.set_address("127.0.0.1:1");
  }
  return request;
}

class MembershipTest : public ::testing::Test {
 protected:
  Member Add(proto::Role role, int64_t pid = 1) {
    return *members_.Register(Request(role, pid), clock_.Now());
  }

  ManualClock clock_;
  Membership members_{{.version = "1.0", .lease = absl::Seconds(10), .seed = 1}};
};

TEST(MetricsTargets, AreOfMembersThatServeSome) {
  proto::GetStatusReply status;
  EXPECT_EQ(MetricsTargets(status), "[]");
  for (const int port : {9420, 0}) {
    proto::MemberStatus& member = *status.add_members();
    member.set_role(proto::ROLE_WORKER);
    member.set_index(3);
    member.set_address("[2001:db8::1]:4003");
    member.set_metrics_port(port);
  }
  status.add_members()->set_metrics_port(9421);  // without an address
  EXPECT_EQ(MetricsTargets(status), R"([{"labels":{"component":"worker","instance":"worker-3"},)"
                                    R"("targets":["[2001:db8::1]:9420"]}])");
}

TEST_F(MembershipTest, KeepsThePortOfMetricsOverALifeAndRefusesABadOne) {
  proto::RegisterRequest request = Request(proto::ROLE_WORKER, 1);
  request.set_metrics_port(9420);
  const Member member = *members_.Register(request, clock_.Now());
  EXPECT_EQ(FromSaved(ToSaved(member)).metrics_port, 9420);
  request.set_metrics_port(65536);
  EXPECT_THAT(std::string(members_.Register(request, clock_.Now()).status().message()),
              HasSubstr("metrics at port 65536"));
}

TEST_F(MembershipTest, IndicesCountWithinTheRoleAndAreReusedAfterLeaving) {
  EXPECT_EQ(Add(proto::ROLE_SERVER).index, 0);
  EXPECT_EQ(Add(proto::ROLE_WORKER).index, 0);
  const Member second = Add(proto::ROLE_WORKER);
  EXPECT_EQ(second.index, 1);
  EXPECT_EQ(Add(proto::ROLE_WORKER).index, 2);
  ASSERT_TRUE(members_.Remove(second.incarnation).has_value());
  EXPECT_FALSE(members_.Remove(second.incarnation).has_value());
  const Member successor = Add(proto::ROLE_WORKER);
  EXPECT_EQ(successor.index, 1);
  EXPECT_NE(successor.incarnation, second.incarnation);
}

TEST_F(MembershipTest, WhoAsksForAnIndexHasItOrIsRefusedByName) {
  proto::RegisterRequest request = Request(proto::ROLE_WORKER, 7);
  request.set_index(1);
  EXPECT_EQ(members_.Register(request, clock_.Now())->index, 1);
  EXPECT_EQ(Add(proto::ROLE_WORKER, 8).index, 0);
  EXPECT_EQ(Add(proto::ROLE_WORKER, 9).index, 2);
  const absl::Status taken = members_.Register(request, clock_.Now()).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(taken)), HasSubstr("worker 1 ("));
  request.set_role(proto::ROLE_SERVER);
  request.set_address("reef:1");
  EXPECT_EQ(members_.Register(request, clock_.Now())->index, 1) << "of another role";
  request.set_index(4096);
  EXPECT_EQ(members_.Register(request, clock_.Now()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MembershipTest, IncarnationsAreNeverReusedAlsoAcrossLives) {
  std::set<uint64_t> seen;
  int64_t issued = 0;
  for (int life = 0; life < 4; ++life) {
    // The same seed in each life is the worst case: only the durable count keeps them apart.
    Membership members({.version = "1.0", .lease = absl::Seconds(10), .seed = 7, .issued = issued});
    for (int i = 0; i < 500; ++i) {
      const Member member = *members.Register(Request(proto::ROLE_WORKER, i), clock_.Now());
      EXPECT_TRUE(seen.insert(member.incarnation).second);
      members.Remove(member.incarnation);
    }
    issued = members.issued();
  }
}

TEST_F(MembershipTest, ARepeatedRegistrationAnswersAsTheFirst) {
  const Member first = *members_.Register(Request(proto::ROLE_WORKER, 5, 99), clock_.Now());
  const Member again = *members_.Register(Request(proto::ROLE_WORKER, 5, 99), clock_.Now());
  EXPECT_EQ(first.incarnation, again.incarnation);
  EXPECT_EQ(members_.size(), 1U);
  EXPECT_NE(members_.Register(Request(proto::ROLE_WORKER, 5, 98), clock_.Now())->incarnation,
            first.incarnation);
}

TEST_F(MembershipTest, AnotherVersionIsRefusedByName) {
  proto::RegisterRequest request = Request(proto::ROLE_SERVER, 1);
  request.set_version("0.9");
  const absl::Status status = members_.Register(request, clock_.Now()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Message(status)), HasSubstr("'0.9'"));
  EXPECT_THAT(std::string(Message(status)), HasSubstr("'1.0'"));
}

TEST_F(MembershipTest, BadRequestsAreRefused) {
  proto::RegisterRequest request = Request(proto::ROLE_SERVER, 1);
  request.clear_address();
  EXPECT_EQ(members_.Register(request, clock_.Now()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(members_.Register(Request(proto::ROLE_UNSPECIFIED, 1), clock_.Now()).status().code(),
            absl::StatusCode::kInvalidArgument);
  request.set_address(std::string(5000, 'a'));
  EXPECT_EQ(members_.Register(request, clock_.Now()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MembershipTest, WhatCommandsShowIsKeptOverALifeAndCanBeCarried) {
  proto::RegisterRequest request = Request(proto::ROLE_SERVER, 1);
  for (const std::string& bad : {std::string("line\nfeed"), std::string(257, 't')}) {
    request.set_command_token(bad);
    EXPECT_EQ(members_.Register(request, clock_.Now()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  request.set_command_token("of-this-server");
  const auto server = members_.Register(request, clock_.Now());
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(FromSaved(ToSaved(*server)).command_token.secret(), "of-this-server");
}

TEST_F(MembershipTest, FactsOfAHostAreBounded) {
  using Facts = proto::HostFacts;
  const std::function<void(Facts&)> too_much[] = {
      [](Facts& facts) { facts.set_cpu(std::string(257, 'c')); },
      [](Facts& facts) { facts.set_kernel(std::string(257, 'k')); },
      [](Facts& facts) { facts.set_build(std::string(257, 'b')); },
      [](Facts& facts) { facts.add_gpus(std::string(257, 'g')); },
      [](Facts& facts) {
        for (int i = 0; i < 65; ++i) {
          facts.add_gpus("gpu");
        }
      },
      [](Facts& facts) { facts.set_cores(-1); },
      [](Facts& facts) { facts.set_memory_bytes(-1); }};
  for (const auto& spoil : too_much) {
    proto::RegisterRequest request = Request(proto::ROLE_WORKER, 1);
    spoil(*request.mutable_facts());
    EXPECT_TRUE(absl::IsInvalidArgument(members_.Register(request, clock_.Now()).status()));
  }
  proto::RegisterRequest request = Request(proto::ROLE_WORKER, 1);
  request.mutable_facts()->set_cpu(std::string(256, 'c'));
  EXPECT_EQ(members_.Register(request, clock_.Now())->facts.cpu().size(), 256U);
}

TEST_F(MembershipTest, ALeaseEndsExactlyWhenItsTimeIsUp) {
  const Member member = Add(proto::ROLE_WORKER, 41);
  EXPECT_EQ(LeaseEnd(member), clock_.Now() + absl::Seconds(10));
  clock_.Advance(absl::Seconds(10) - absl::Nanoseconds(1));
  EXPECT_TRUE(members_.TakeExpired(clock_.Now()).empty());
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_EQ(members_.TakeExpired(clock_.Now()).size(), 1U);
}

TEST_F(MembershipTest, WhoseConnectionBreaksHasASecondToBeBack) {
  const Member gone = Add(proto::ROLE_WORKER, 41);
  const Member back = Add(proto::ROLE_WORKER, 42);
  const Member renews = Add(proto::ROLE_WORKER, 43);
  const Member never_connected = Add(proto::ROLE_WORKER, 44);
  for (const Member& member : {gone, back, renews}) {
    ASSERT_TRUE(members_.OnConnected(member.incarnation).ok());
    members_.OnDisconnected(member.incarnation, clock_.Now());
  }
  EXPECT_EQ(members_.NextExpiry(), clock_.Now() + absl::Seconds(1));
  ASSERT_TRUE(members_.OnConnected(back.incarnation).ok());
  members_.OnRenewed(renews.incarnation);
  // What it had asked before may still be looked at.
  EXPECT_TRUE(members_.Renew(gone.incarnation, clock_.Now()).ok());
  clock_.Advance(absl::Seconds(1));
  const std::vector<Member> expired = members_.TakeExpired(clock_.Now());
  ASSERT_EQ(expired.size(), 1U);
  EXPECT_EQ(expired[0].incarnation, gone.incarnation);
  EXPECT_TRUE(absl::IsNotFound(members_.OnConnected(gone.incarnation)));
  members_.OnDisconnected(gone.incarnation, clock_.Now());  // nothing to do
}

TEST_F(MembershipTest, WhoHoldsAnotherConnectionIsNotCutOff) {
  const Member member = Add(proto::ROLE_SERVER, 41);
  ASSERT_TRUE(members_.OnConnected(member.incarnation).ok());
  ASSERT_TRUE(members_.OnConnected(member.incarnation).ok());  // before the first one's end shows
  members_.OnDisconnected(member.incarnation, clock_.Now());
  EXPECT_EQ(members_.NextExpiry(), clock_.Now() + absl::Seconds(10));
  for (int more = 0; more < 7; ++more) {
    ASSERT_TRUE(members_.OnConnected(member.incarnation).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(members_.OnConnected(member.incarnation)));
}

TEST_F(MembershipTest, ALostMemberIsReportedOnce) {
  const Member silent = Add(proto::ROLE_WORKER, 41);
  const Member lively = Add(proto::ROLE_WORKER, 42);
  clock_.Advance(absl::Seconds(9));
  ASSERT_TRUE(members_.Renew(lively.incarnation, clock_.Now()).ok());
  EXPECT_TRUE(members_.TakeExpired(clock_.Now()).empty());
  EXPECT_EQ(members_.NextExpiry(), absl::UnixEpoch() + absl::Seconds(10));
  EXPECT_EQ(members_.OldestLease(proto::ROLE_WORKER, clock_.Now()), absl::Seconds(9));
  EXPECT_EQ(members_.OldestLease(proto::ROLE_SERVER, clock_.Now()), absl::ZeroDuration());
  clock_.Advance(absl::Seconds(1));
  const std::vector<Member> expired = members_.TakeExpired(clock_.Now());
  ASSERT_EQ(expired.size(), 1U);
  EXPECT_EQ(NameOf(expired[0]), "worker 0 (host alpha, pid 41)");
  EXPECT_TRUE(members_.TakeExpired(clock_.Now()).empty());
  EXPECT_EQ(members_.Renew(silent.incarnation, clock_.Now()).code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(members_.Renew(lively.incarnation, clock_.Now()).ok());
}

TEST_F(MembershipTest, TimeThatNobodyCouldBeHeardDoesNotCount) {
  Add(proto::ROLE_WORKER);
  clock_.Advance(absl::Seconds(12));
  members_.ExtendLeases(absl::Seconds(4));
  EXPECT_TRUE(members_.TakeExpired(clock_.Now()).empty());
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(members_.TakeExpired(clock_.Now()).size(), 1U);
}

TEST_F(MembershipTest, AShorterLeaseBindsOnlyThoseWhoHeardOfIt) {
  const Member old = Add(proto::ROLE_WORKER, 1);
  members_.set_lease(absl::Seconds(2));
  const Member told = Add(proto::ROLE_WORKER, 2);
  clock_.Advance(absl::Seconds(3));
  const std::vector<Member> expired = members_.TakeExpired(clock_.Now());
  ASSERT_EQ(expired.size(), 1U);
  EXPECT_EQ(expired[0].incarnation, told.incarnation);
  ASSERT_TRUE(members_.Renew(old.incarnation, clock_.Now()).ok());
  clock_.Advance(absl::Seconds(2));
  EXPECT_EQ(members_.TakeExpired(clock_.Now()).size(), 1U);
}

TEST_F(MembershipTest, ThereIsALimit) {
  for (int i = 0; i < 4096; ++i) {
    ASSERT_TRUE(members_.Register(Request(proto::ROLE_WORKER, i), clock_.Now()).ok());
  }
  EXPECT_EQ(members_.Register(Request(proto::ROLE_WORKER, 1), clock_.Now()).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(MembershipTest, MembersOfAnEarlierLifeAreMembersStill) {
  const Member server = Add(proto::ROLE_SERVER);
  const Member worker = Add(proto::ROLE_WORKER, 7);
  Membership next({.version = "1.0", .lease = absl::Seconds(5), .issued = 2, .term = 2});
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(next.Restore({ToSaved(server), ToSaved(worker)}, clock_.Now()).empty());
  EXPECT_TRUE(next.Renew(server.incarnation, clock_.Now()).ok());
  EXPECT_EQ(NameOf(*next.Find(worker.incarnation)), NameOf(worker));
  EXPECT_EQ(next.NextExpiry(), clock_.Now() + absl::Seconds(5)) << "leases begin anew";
  auto again = Request(proto::ROLE_SERVER, 9);
  again.set_index(0);
  EXPECT_THAT(std::string(Message(next.Register(again, clock_.Now()).status())),
              HasSubstr("is there already"));
}

// The coordinator's program was replaced, and theirs was not.
TEST_F(MembershipTest, WhoHasAnotherVersionThanTheNextLifeIsToldSo) {
  const proto::SavedMember server = ToSaved(Add(proto::ROLE_SERVER));
  proto::SavedMember unsaid = ToSaved(Add(proto::ROLE_WORKER, 7));
  unsaid.mutable_registered()->clear_version();
  Membership next({.version = "1.1", .lease = absl::Seconds(5), .issued = 2, .term = 2});
  EXPECT_EQ(next.Restore({server, unsaid}, clock_.Now()).size(), 2U);
  EXPECT_EQ(next.size(), 0U);
  for (const proto::SavedMember& member : {server, unsaid}) {
    const absl::Status refused = next.Renew(member.incarnation(), clock_.Now());
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(Message(refused)),
                HasSubstr("the coordinator '1.1': install the same"));
    EXPECT_FALSE(next.MayComeBack(member.incarnation()));
  }
  auto upgraded = Request(proto::ROLE_SERVER, 9);
  upgraded.set_version("1.1");
  upgraded.set_index(0);
  EXPECT_TRUE(next.Register(upgraded, clock_.Now()).ok()) << "its place is free at once";
}

// That it was gone could not be written.
TEST_F(MembershipTest, WhoseIndexOrAddressALaterOneHasIsGone) {
  const auto add = [this](proto::Role role, int index, const std::string& address) {
    proto::RegisterRequest request = Request(role, index);
    request.set_index(index);
    request.set_address(address);
    const Member member = *members_.Register(request, clock_.Now());
    members_.Remove(member.incarnation);
    return member;
  };
  const Member gone[] = {add(proto::ROLE_SERVER, 0, "a:1"), add(proto::ROLE_SERVER, 1, "b:1"),
                         add(proto::ROLE_WORKER, 0, "")};
  const Member there[] = {add(proto::ROLE_SERVER, 0, "c:1"), add(proto::ROLE_SERVER, 2, "b:1"),
                          add(proto::ROLE_WORKER, 0, ""), add(proto::ROLE_WORKER, 1, "")};
  std::vector<proto::SavedMember> saved;
  for (const Member& member : there) {
    saved.push_back(ToSaved(member));
  }
  for (const Member& member : gone) {
    saved.push_back(ToSaved(member));
  }
  Membership next({.version = "1.0", .lease = absl::Seconds(5), .issued = 7, .term = 2});
  std::set<uint64_t> found;
  for (const Member& member : next.Restore(saved, clock_.Now())) {
    found.insert(member.incarnation);
  }
  EXPECT_EQ(found,
            (std::set<uint64_t>{gone[0].incarnation, gone[1].incarnation, gone[2].incarnation}));
  EXPECT_EQ(next.size(), std::size(there));
  for (const Member& member : there) {
    EXPECT_TRUE(next.Renew(member.incarnation, clock_.Now()).ok());
  }
}

// The record of the earlier life has lost what was written last.
TEST_F(MembershipTest, WhoHasNoRecordComesBackAsItWas) {
  const auto request = [&](uint64_t cluster, uint64_t incarnation, int64_t term) {
    proto::RegisterRequest wanted = Request(proto::ROLE_WORKER, 1, incarnation);
    wanted.set_index(3);
    wanted.mutable_earlier()->set_cluster(cluster);
    wanted.mutable_earlier()->set_incarnation(incarnation);
    wanted.mutable_earlier()->set_term(term);
    return wanted;
  };
  Membership next({.version = "1.0", .seed = 4, .issued = 10, .cluster = 8, .term = 3});
  const uint64_t lost = (uint64_t{5} << 24) | 12;
  EXPECT_TRUE(next.MayComeBack(lost));
  const auto refused = [&](const proto::RegisterRequest& wanted) {
    return next.Register(wanted, clock_.Now()).status();
  };
  EXPECT_THAT(std::string(Message(refused(request(7, lost, 2)))), HasSubstr("another cluster"));
  EXPECT_TRUE(absl::IsNotFound(refused(request(8, (uint64_t{5} << 24) | 10, 2))))
      << "the record would know it";
  EXPECT_TRUE(absl::IsNotFound(refused(request(8, lost, 3)))) << "it was a member in this life";
  const auto back = next.Register(request(8, lost, 2), clock_.Now());
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->incarnation, lost);
  EXPECT_EQ(back->index, 3);
  EXPECT_EQ(next.issued(), 12);
  EXPECT_TRUE(next.Register(request(8, lost, 2), clock_.Now()).ok()) << "a repetition";
  next.Remove(lost);
  EXPECT_FALSE(next.MayComeBack(lost));
  EXPECT_TRUE(absl::IsNotFound(refused(request(8, lost, 2)))) << "its lease is over";
  EXPECT_FALSE(members_.MayComeBack(lost)) << "a first life has none before it";
}

}  // namespace
}  // namespace shoal::server

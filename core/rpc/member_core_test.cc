#include "core/rpc/member_core.h"

#include "core/base/status.h"
#include "gtest/gtest.h"

namespace shoal::rpc {
namespace {

using What = MemberCore::What;

constexpr absl::Time kStart = absl::UnixEpoch();

proto::RegisterReply Registered(double patience = 600, int64_t term = 1) {
  proto::RegisterReply reply;
  reply.set_incarnation(77);
  reply.set_cluster(5);
  reply.set_term(term);
  reply.set_lease_seconds(9);
  reply.set_coordinator_patience_seconds(patience);
  return reply;
}

proto::RenewLeaseReply Renewed(int64_t term = 1, double patience = 600) {
  proto::RenewLeaseReply reply;
  reply.set_term(term);
  reply.set_lease_seconds(9);
  reply.set_coordinator_patience_seconds(patience);
  return reply;
}

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

TEST(MemberCore, RenewsThreeTimesInALeaseUntilItIsTold) {
  MemberCore core(Registered(), kStart);
  EXPECT_EQ(core.what(), What::kRenew);
  EXPECT_EQ(core.next(), At(3));
  EXPECT_TRUE(core.OnRenewed(Renewed(), At(3), At(4)).ok());
  EXPECT_EQ(core.next(), At(7));
  proto::RenewLeaseReply shorter = Renewed();
  shorter.set_lease_seconds(3);
  EXPECT_TRUE(core.OnRenewed(shorter, At(7), At(7)).ok());
  EXPECT_EQ(core.next(), At(8));
  shorter.set_shut_down(true);
  EXPECT_TRUE(core.OnRenewed(shorter, At(8), At(8)).ok());
  ASSERT_EQ(core.what(), What::kEnd);
  EXPECT_TRUE(core.end().ok());
}

TEST(MemberCore, ACoordinatorThatIsNotThereIsWaitedFor) {
  MemberCore core(Registered(), kStart);
  absl::Time now = core.next();
  while (now < At(599)) {
    ASSERT_FALSE(core.OnRenewed(Unavailable("gone"), now, now).ok());
    ASSERT_EQ(core.what(), What::kRenew);
    ASSERT_LE(core.next() - now, absl::Seconds(1));
    now = core.next();
  }
  EXPECT_TRUE(core.OnRenewed(Renewed(2), now, now).ok()) << "its next life";
  EXPECT_EQ(core.what(), What::kRenew);
  now += absl::Seconds(600);
  EXPECT_TRUE(core.OnRenewed(Unavailable("gone"), now, now).ok());
  ASSERT_EQ(core.what(), What::kEnd);
  EXPECT_EQ(core.end(), Unavailable("gone"));
}

// It has no state that another life could go on with.
TEST(MemberCore, WithoutPatienceALeaseIsTheLimit) {
  MemberCore core(Registered(/*patience=*/0), kStart);
  EXPECT_FALSE(core.OnRenewed(Unavailable("gone"), At(3), At(8.9)).ok());
  EXPECT_TRUE(core.OnRenewed(Unavailable("gone"), At(8.9), At(9)).ok());
  EXPECT_EQ(core.what(), What::kEnd);
}

TEST(MemberCore, WhoIsUnknownSaysWhoItWas) {
  MemberCore core(Registered(600, /*term=*/3), kStart);
  EXPECT_TRUE(core.OnRenewed(absl::NotFoundError("who?"), At(3), At(4)).ok());
  ASSERT_EQ(core.what(), What::kRegister);
  EXPECT_EQ(core.next(), At(4));
  EXPECT_EQ(core.earlier().incarnation(), 77U);
  EXPECT_EQ(core.earlier().cluster(), 5U);
  EXPECT_EQ(core.earlier().term(), 3);
  EXPECT_FALSE(core.OnRegistered(Unavailable("gone again"), At(4), At(4)).ok());
  ASSERT_EQ(core.what(), What::kRegister);
  EXPECT_TRUE(core.OnRegistered(Registered(600, 4), At(5), At(5)).ok());
  ASSERT_EQ(core.what(), What::kRenew);
  EXPECT_EQ(core.earlier().term(), 4);
}

TEST(MemberCore, ARefusalEndsIt) {
  MemberCore core(Registered(), kStart);
  EXPECT_TRUE(core.OnRenewed(absl::NotFoundError("who?"), At(3), At(3)).ok());
  EXPECT_TRUE(
      core.OnRegistered(absl::FailedPreconditionError("of another cluster"), At(3), At(3)).ok());
  ASSERT_EQ(core.what(), What::kEnd);
  EXPECT_EQ(core.end(), absl::FailedPreconditionError("of another cluster"));
  MemberCore other(Registered(), kStart);
  EXPECT_TRUE(other.OnRenewed(absl::UnauthenticatedError("another token"), At(3), At(3)).ok());
  EXPECT_EQ(other.what(), What::kEnd);
}

TEST(MemberCore, AnEarlierLifesAnswerIsNone) {
  MemberCore core(Registered(600, 2), kStart);
  EXPECT_TRUE(core.OnRenewed(Renewed(3), At(3), At(3)).ok());
  proto::RenewLeaseReply stale = Renewed(2);
  stale.set_shut_down(true);
  EXPECT_FALSE(core.OnRenewed(stale, At(6), At(6)).ok());
  EXPECT_EQ(core.what(), What::kRenew);
  EXPECT_EQ(core.earlier().term(), 3);
}

}  // namespace
}  // namespace shoal::rpc

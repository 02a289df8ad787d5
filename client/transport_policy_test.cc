#include "client/transport_policy.h"

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::client {
namespace {

using ::testing::ElementsAre;

constexpr TransportPolicyOptions kOptions = {.breaks = 3,
                                             .lasting = absl::Seconds(60),
                                             .first_rest = absl::Seconds(30),
                                             .longest_rest = absl::Seconds(100)};
const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr size_t kVerbs = 0;
constexpr size_t kTcp = 1;
const std::vector<bool> kNone = {false, false};

// Breaks verbs `times` times, a second after each connection.
bool Break(TransportPolicy& policy, int times, absl::Time& now) {
  bool rests = false;
  for (int i = 0; i < times; ++i) {
    policy.OnConnected(kVerbs, policy.LeftOut(now), {}, now);
    now += absl::Seconds(1);
    rests = policy.OnBroken(kVerbs, now);
  }
  return rests;
}

TEST(TransportPolicy, FewBreaksChangeNothing) {
  TransportPolicy policy(2, kOptions);
  absl::Time now = kStart;
  EXPECT_FALSE(Break(policy, 2, now));
  EXPECT_EQ(policy.LeftOut(now), kNone);
  EXPECT_FALSE(policy.IsTryDue(kVerbs, now));
}

TEST(TransportPolicy, ATransportThatKeepsBreakingRestsAndIsTriedAgain) {
  TransportPolicy policy(2, kOptions);
  absl::Time now = kStart;
  ASSERT_TRUE(Break(policy, 3, now));
  EXPECT_THAT(policy.LeftOut(now), ElementsAre(true, false));
  EXPECT_EQ(policy.rests_until(kVerbs), now + absl::Seconds(30));
  policy.OnConnected(kTcp, policy.LeftOut(now), {}, now);
  EXPECT_FALSE(policy.IsTryDue(kTcp, now + absl::Seconds(29)));
  now += absl::Seconds(30);
  EXPECT_EQ(policy.LeftOut(now), kNone);
  EXPECT_TRUE(policy.IsTryDue(kTcp, now));
  EXPECT_FALSE(policy.IsTryDue(kVerbs, now)) << "nothing before it";
  policy.OnConnected(kVerbs, policy.LeftOut(now), {}, now);
  EXPECT_FALSE(policy.IsTryDue(kTcp, now + absl::Hours(1))) << "it was tried";
}

TEST(TransportPolicy, WhatWorkedOnceAndIsNotTakenAnyMoreIsTriedAgainLater) {
  TransportPolicy policy(2, kOptions);
  absl::Time now = kStart;
  policy.OnConnected(kVerbs, kNone, {}, now);
  now += absl::Hours(1);
  EXPECT_FALSE(policy.OnBroken(kVerbs, now));
  EXPECT_THAT(policy.OnConnected(kTcp, kNone, {}, now), ElementsAre(kVerbs));
  EXPECT_EQ(policy.rests_until(kVerbs), now + absl::Seconds(30));
  now += absl::Seconds(30);
  ASSERT_TRUE(policy.IsTryDue(kTcp, now));
  EXPECT_THAT(policy.OnConnected(kTcp, policy.LeftOut(now), {}, now), ElementsAre(kVerbs));
  EXPECT_EQ(policy.rests_until(kVerbs), now + absl::Seconds(60));
  now += absl::Seconds(60);
  ASSERT_TRUE(policy.IsTryDue(kTcp, now));
  EXPECT_THAT(policy.OnConnected(kVerbs, policy.LeftOut(now), {}, now), ElementsAre());
  EXPECT_FALSE(policy.IsTryDue(kVerbs, now + absl::Hours(1)));
}

TEST(TransportPolicy, WhatNeverWorkedIsNotTriedAgainAndAgain) {
  TransportPolicy policy(2, kOptions);
  EXPECT_THAT(policy.OnConnected(kTcp, kNone, {}, kStart), ElementsAre()) << "another host, say";
  EXPECT_FALSE(policy.IsTryDue(kTcp, kStart + absl::Hours(1)));
  EXPECT_EQ(policy.LeftOut(kStart), kNone);
}

TEST(TransportPolicy, RestsDoubleUpToTheLongestUntilAConnectionLasts) {
  TransportPolicy policy(2, kOptions);
  absl::Time now = kStart;
  for (const int seconds : {30, 60, 100, 100}) {
    ASSERT_TRUE(Break(policy, 3, now));
    EXPECT_EQ(policy.rests_until(kVerbs) - now, absl::Seconds(seconds));
    now = policy.rests_until(kVerbs);
  }
  policy.OnConnected(kVerbs, kNone, {}, now);
  now += absl::Seconds(60);
  EXPECT_FALSE(policy.OnBroken(kVerbs, now)) << "it had lasted";
  ASSERT_TRUE(Break(policy, 2, now));
  EXPECT_EQ(policy.rests_until(kVerbs) - now, absl::Seconds(30));
}

TEST(TransportPolicy, WhatCannotBeCompletedRestsAtOnce) {
  TransportPolicy policy(2, kOptions);
  EXPECT_THAT(policy.OnConnected(kTcp, kNone, {kVerbs}, kStart), ElementsAre(kVerbs));
  EXPECT_THAT(policy.LeftOut(kStart), ElementsAre(true, false));
  EXPECT_TRUE(policy.IsTryDue(kTcp, kStart + absl::Seconds(30)));
}

TEST(TransportPolicy, NeverAreAllLeftOut) {
  TransportPolicy one(1, kOptions);
  absl::Time now = kStart;
  EXPECT_FALSE(Break(one, 9, now)) << "there is no other";
  EXPECT_THAT(one.LeftOut(now), ElementsAre(false));

  Random random(11);
  for (int round = 0; round < 200; ++round) {
    TransportPolicy policy(3, kOptions);
    now = kStart;
    for (int i = 0; i < 40; ++i) {
      const std::vector<bool> left_out = policy.LeftOut(now);
      ASSERT_THAT(left_out, testing::Contains(false));
      const size_t transport = random.Below(3);
      if (random.Below(4) == 0) {
        policy.OnNoneConnected();
      } else if (!left_out[transport]) {
        policy.OnConnected(transport, left_out, {}, now);
        now += absl::Seconds(random.Below(90));
        policy.OnBroken(transport, now);
      }
    }
  }
}

TEST(TransportPolicy, WhereNothingElseConnectsWhatRestsIsOfferedAgain) {
  TransportPolicy policy(2, kOptions);
  absl::Time now = kStart;
  ASSERT_TRUE(Break(policy, 3, now));
  policy.OnNoneConnected();
  EXPECT_EQ(policy.LeftOut(now), kNone);
}

}  // namespace
}  // namespace shoal::client

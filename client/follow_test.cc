// A client whose servers get and give partitions between steps.
#include "client/testing/client_rig.h"
#include "gtest/gtest.h"

namespace shoal::client {
namespace {

class FollowTest : public TransportTest {
 protected:
  static RigOptions Reserving() {
    RigOptions options = Options();
    options.reserves_all = true;
    return options;
  }
  // The next map, by which the first partition is at the next server.
  static plan::ShardMap Next(const plan::ShardMap& map, int servers) {
    plan::ShardMap next = map;
    ++next.generation;
    next.servers[0] = {(map.servers[0][0] + 1) % servers};
    return next;
  }
  static bool Follow(const ClientRig& rig, ParameterClient& client, const plan::ShardMap& map) {
    return client.Follow(rig.unit_specs, rig.partitions, map);
  }
  // Gets and pushes of all units.
  static void Train(ClientRig& rig, ParameterClient& client, int64_t step, int64_t generation) {
    rig.Publish(step - 1);
    rig.OpenAttempt(step, 1);
    ASSERT_TRUE(client.BeginStep(step, 1, generation).ok());
    std::vector<std::vector<int64_t>> expected;
    for (int unit = 0; unit < rig.units(); ++unit) {
      const auto view = client.Get(unit);
      ASSERT_TRUE(view.ok()) << view.status();
      ExpectWeights(*view, DType::kF32, step - 1, unit);
      client.Release(unit);
      const auto gradient =
          IntegerGradient(rig.unit_specs[static_cast<size_t>(unit)], static_cast<int>(step));
      ASSERT_TRUE(client.Push(unit, gradient, {.key = step}).ok());
      Add(gradient, expected.emplace_back());
    }
    ASSERT_TRUE(client.Finish(absl::Seconds(30)).ok());
    ExpectSums(rig, expected);
  }
};

TEST_P(FollowTest, GoesOnByTheNextMapWithTheConnectionsItHas) {
  ClientRig rig(Reserving());
  const auto client = *rig.NewClient();
  Train(rig, *client, 1, 5);
  const plan::ShardMap next = Next(rig.map, rig.options.servers);
  rig.layout.holders[0] = next.servers[0];
  rig.layout.generation = next.generation;
  ASSERT_TRUE(Follow(rig, *client, next));
  Train(rig, *client, 2, 6);
  EXPECT_EQ(client->statistics().transports[0].connections, rig.options.servers);
  EXPECT_EQ(client->statistics().reconnects, 0);
}

TEST_P(FollowTest, WhatWentIsNotReadWhereItWasWhenItComesBack) {
  ClientRig rig(Reserving());
  const auto client = *rig.NewClient();
  const plan::ShardMap next = Next(rig.map, rig.options.servers);
  ASSERT_TRUE(Follow(rig, *client, next));
  plan::ShardMap back = rig.map;
  back.generation = next.generation + 1;
  EXPECT_FALSE(Follow(rig, *client, back));
  EXPECT_TRUE(client->BeginStep(1, 1, next.generation).ok()) << "it has changed nothing";
  const auto later = *rig.NewClient();
  plan::ShardMap skipped = next;
  ++skipped.generation;
  EXPECT_FALSE(Follow(rig, *later, skipped)) << "it may have come back by the one between";
}

TEST_P(FollowTest, NotWhereItDoesNotReachWhatHasCome) {
  ClientRig rig(Options());
  const auto client = *rig.NewClient();
  EXPECT_FALSE(Follow(rig, *client, Next(rig.map, rig.options.servers)));
}

TEST_P(FollowTest, NotWhileSomethingIsUnderWay) {
  ClientRig rig(Reserving());
  const auto client = *rig.NewClient();
  rig.Publish(0);
  rig.OpenAttempt(1, 1);
  ASSERT_TRUE(client->BeginStep(1, 1, 5).ok());
  rig.HoldAcknowledgements(true);
  ASSERT_TRUE(client->Push(0, IntegerGradient(rig.unit_specs[0], 1), {.key = 1}).ok());
  const plan::ShardMap next = Next(rig.map, rig.options.servers);
  EXPECT_FALSE(Follow(rig, *client, next));
  rig.HoldAcknowledgements(false);
  ASSERT_TRUE(client->Finish(absl::Seconds(30)).ok());
  EXPECT_TRUE(Follow(rig, *client, next));
}

INSTANTIATE_TEST_SUITE_P(Transports, FollowTest, ::testing::ValuesIn(TransportsHere()));

}  // namespace
}  // namespace shoal::client

// A job with service.replicas under simulation, which loses servers at every point of a step: bits
// are compared with those of a run in which nothing happens.
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/sim_world.h"

namespace shoal::server {
namespace {

using simulation::SimOptions;
using simulation::SimWorld;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SimOptions WithReplicas() {
  return {.servers = 3, .workers = 2, .steps = 8, .exact = true, .replicas = 2, .stays = true};
}

// Each step once, though servers were lost.
void ExpectAllStepsOnce(SimWorld& world, int64_t steps) {
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.done()->step(), steps);
  int64_t step = 0;
  for (const proto::StepEvent& event : world.step_events()) {
    EXPECT_EQ(event.step(), ++step);
  }
  EXPECT_EQ(step, steps);
}

// For a while, and then there is its next life.
void EndCoordinator(SimWorld& world, absl::Duration in) {
  world.loop.After(in, [&world] {
    world.coordinator().process().End();
    world.loop.After(absl::Seconds(0.2), [&world] { world.coordinator().Start(); });
  });
}

using LossPoint = std::tuple<std::string, int>;

std::string ReplicaPoint(const ::testing::TestParamInfo<LossPoint>& info) {
  return fmt::format("{}{}", std::get<0>(info.param), std::get<1>(info.param));
}

class ReplicasTest : public ::testing::TestWithParam<LossPoint> {};

TEST_P(ReplicasTest, ALostServerCostsNoStep) {
  const auto& [point, nth] = GetParam();
  for (const int lost : {0, 1, 2}) {
    SimWorld world(WithReplicas());
    world.At(point, nth, [&] { world.KillServer(lost); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty()) << lost;
    ExpectAllStepsOnce(world, 8);
    EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_underreplicated_partitions 0"));
  }
}

TEST_P(ReplicasTest, OneThatComesBackTakesPartAgain) {
  const auto& [point, nth] = GetParam();
  SimOptions options = WithReplicas();
  options.steps = 20;
  SimWorld world(options);
  world.At(point, nth, [&] { world.KillServer(1, absl::Milliseconds(3)); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ExpectAllStepsOnce(world, 20);
}

// Of two servers one has all that is left, and a third is lost once backups are there again.
TEST_P(ReplicasTest, OneAfterTheOtherCostsNoStep) {
  const auto& [point, nth] = GetParam();
  SimWorld world(WithReplicas());
  world.At(point, nth, [&] { world.KillServer(1); });
  bool again = false;
  world.At("begin", 15, [&] {
    again = true;
    world.KillServer(2);
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_TRUE(again);
  if (world.disk.record.find("\"servers_before\":2") != std::string::npos) {
    ExpectAllStepsOnce(world, 8);
    EXPECT_THAT(world.metrics.Text(), ::testing::Not(HasSubstr("underreplicated_partitions 0\n")));
  }
}

// What is written is where it was when the write began, so that no partition goes meanwhile.
TEST(ReplicasCheckpointTest, AWriteThatTakesLongEndsBeforeStateMoves) {
  for (const int lost : {0, 1, 2}) {
    SimWorld world(WithReplicas());
    world.At("write", 1, [&] {
      for (int server = 0; server < 3; ++server) {
        world.servers.process(server).disk_slow_until = simulation::kNever;
      }
    });
    world.At("prepare", 8, [&] {  // in the step after it
      world.KillServer(lost);
      for (int server = 0; server < 3; ++server) {
        world.servers.process(server).disk_slow_until = 0;
      }
    });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty()) << lost;
    ExpectAllStepsOnce(world, 8);
  }
}

// Then the record of a commit, the map and what servers say have to agree.
TEST_P(ReplicasTest, WithTheCoordinatorItCostsNoStep) {
  const auto& [point, nth] = GetParam();
  for (const bool before : {false, true}) {
    SimWorld world(WithReplicas());
    world.At(point, nth, [&] {
      world.KillServer(1);
      EndCoordinator(world, before ? absl::ZeroDuration() : absl::Milliseconds(1));
    });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ExpectAllStepsOnce(world, 8);
  }
}

// Workers are in the midst of what they read there.
TEST_P(ReplicasTest, ALostServerCostsNoStepWhereItIsReadFromToo) {
  const auto& [point, nth] = GetParam();
  for (const int lost : {0, 1, 2}) {
    SimOptions options = WithReplicas();
    options.read_replicas = true;
    SimWorld world(options);
    world.At(point, nth, [&] { world.KillServer(lost, absl::Milliseconds(3)); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty()) << lost;
    ExpectAllStepsOnce(world, 8);
  }
}

INSTANTIATE_TEST_SUITE_P(Points, ReplicasTest,
                         ::testing::Combine(::testing::Values("begin", "work", "prepare",
                                                              "replicate", "commit", "committed",
                                                              "pin", "write"),
                                            ::testing::Values(1, 2, 4, 7)),
                         ReplicaPoint);

// What is on its own host a worker reads there, and from anybody what is not.
TEST(ReadReplicasTest, AWorkerReadsFromTheServerOnItsHostWhatThatHas) {
  SimOptions options = WithReplicas();
  options.read_replicas = true;
  options.hosts_and_loopback = true;
  SimWorld world(options);
  bool looked = false;
  world.At("prepare", 1, [&] {
    looked = true;
    for (const int here : {0, 1}) {  // a worker, and a server
      const simulation::SimHostedJob& hosted = *world.servers.server(here).hosted();
      int64_t held = 0;
      int64_t all = 0;
      for (const auto* store : {hosted.store.get(), hosted.backups.get()}) {
        for (const JobStore::Held& one : store->held()) {
          held += 4 * one.partition->spec().count;
        }
      }
      const std::vector<int64_t> bytes = world.client_statistics(here).server_get_bytes;
      for (const int64_t of_server : bytes) {
        all += of_server;
      }
      EXPECT_EQ(bytes[static_cast<size_t>(here)], held);
      int64_t model = 0;
      for (const plan::UnitSpec& unit : hosted.job.model().units()) {
        model += 4 * unit.count;
      }
      EXPECT_EQ(all, model);
      EXPECT_LT(held, all);
    }
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_TRUE(looked);
}

// Of a step that is drawn too: how many packs there are is known, whoever draws them.
TEST(ReplicasGradientTest, ComesToBackupsBeforeTheLastWorkerReports) {
  for (const bool draw : {false, true}) {
    for (const int stages : {1, 2}) {
      SimOptions options = WithReplicas();
      options.draw = draw && stages == 1;
      options.stages = stages;
      SimWorld world(options);
      bool sealed = false;
      std::map<int64_t, int> before;  // by step
      world.servers.on_gradient = [&](int, const proto::TakeGradientRequest& piece) {
        before[piece.step()] += sealed ? 0 : 1;
      };
      world.hook = [&](const char* point, int) {
        sealed = point == std::string("prepare") || (sealed && point != std::string("begin"));
      };
      ASSERT_THAT(world.RunAndCheck(), IsEmpty());
      ExpectAllStepsOnce(world, 8);
      EXPECT_EQ(before.size(), 8U) << draw << stages;
    }
  }
}

// Sums of steps are of as many packs as a worker runs, which nobody knows before.
TEST(ReplicasGradientTest, IsFetchedAtTheEndWhereWorkersPushSums) {
  SimOptions options = WithReplicas();
  options.sums = true;
  SimWorld world(options);
  int early = 0;
  world.servers.on_gradient = [&](int, const proto::TakeGradientRequest& piece) {
    early += piece.step() > 1 ? 1 : 0;  // nobody has said so before the first
  };
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ExpectAllStepsOnce(world, 8);
  EXPECT_EQ(early, 0);
}

// Who would join meanwhile could not connect to it.
TEST(ReplicasMoveTest, NobodyJoinsUntilTheMapIsWithoutWhoIsLost) {
  SimWorld world(WithReplicas());
  int asked = 0;
  world.At("work", 5, [&] {
    world.KillServer(1);
    world.At("reserve", 1, [&] {
      ++asked;
      proto::JoinJobRequest request;
      request.set_incarnation(world.worker_incarnation(0));
      const auto reply = world.core().Join(request);
      ASSERT_TRUE(reply.ok()) << reply.status();
      EXPECT_FALSE(reply->has_value());
    });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(asked, 1);
  ExpectAllStepsOnce(world, 8);
}

// Those points are of the move by which it is recovered.
TEST(ReplicasMoveTest, WhoIsLostWhileAnotherIsRecoveredCostsNoStepWhereAThirdHasAll) {
  for (const char* point : {"reserve", "fetch", "begin"}) {
    for (const int nth : {1, 2, 3}) {
      SimOptions options = WithReplicas();
      options.servers = 4;
      options.replicas = 3;
      SimWorld world(options);
      world.At("prepare", 9, [&] {
        world.KillServer(1);
        world.At(point, nth, [&] { world.KillServer(3); });
      });
      ASSERT_THAT(world.RunAndCheck(), IsEmpty()) << point << nth;
      ExpectAllStepsOnce(world, 8);
    }
  }
}

TEST(ReplicasMoveTest, ServersComeAndGoByWish) {
  SimOptions options = WithReplicas();
  options.servers = 2;
  options.spare_servers = 1;
  options.steps = 16;
  SimWorld world(options);
  const auto wish = [&](int64_t servers) {
    proto::ScaleRequest request;
    request.set_servers(servers);
    EXPECT_EQ(world.Scale(request).status(), absl::OkStatus());
  };
  world.At("commit", 4, [&] { wish(3); });
  world.At("commit", 25, [&] { wish(2); });
  world.At("commit", 40, [&] { world.KillServer(0); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ExpectAllStepsOnce(world, 16);
}

// Whether servers come by wish or by themselves.
TEST(ReplicasMoveTest, BackupsAreThereAgainWithoutAnybodyComing) {
  for (const bool elastic : {false, true}) {
    SimOptions options = WithReplicas();
    options.elastic = elastic;
    options.steps = 16;
    SimWorld world(options);
    world.At("work", 5, [&] { world.KillServer(1); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty()) << elastic;
    ExpectAllStepsOnce(world, 16);
    EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_underreplicated_partitions 0")) << elastic;
  }
}

// It loads for longer than the job takes.
TEST(ReplicasMoveTest, BackupsDoNotWaitForAServerThatLoads) {
  SimWorld world(WithReplicas(), simulation::Faults::FromList(
                                     1, {{simulation::FaultKind::kBuggify, "configure", 4, 0}}));
  world.servers.process(1).disk_slow_until = simulation::kNever;
  bool loaded = false;
  world.hook = [&](const char*, int) {
    loaded = loaded ||
             (world.servers.process(1).life() == 2 && world.servers.server(1).hosted() != nullptr);
  };
  world.At("work", 5, [&] { world.KillServer(1, absl::Milliseconds(3)); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ExpectAllStepsOnce(world, 8);
  EXPECT_FALSE(loaded);
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_underreplicated_partitions 0"));
}

// Who is to come has no host yet.
TEST(ReplicasMoveTest, AWishForMoreServersThanThereAreWaits) {
  SimOptions options = WithReplicas();
  options.servers = 2;
  SimWorld world(options);
  world.At("commit", 4, [&] {
    proto::ScaleRequest request;
    request.set_servers(3);
    EXPECT_EQ(world.Scale(request).status(), absl::OkStatus());
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ExpectAllStepsOnce(world, 8);
}

TEST(ReplicasMoveTest, AllThatHaveAPartitionLostIsALossAsBefore) {
  SimWorld world(WithReplicas());
  world.At("work", 7, [&] {
    world.KillServer(0, absl::Milliseconds(3));
    world.KillServer(1, absl::Milliseconds(3));
  });
  EXPECT_TRUE(world.Run());
  EXPECT_THAT(world.violations(), IsEmpty());
  EXPECT_THAT(world.disk.record, HasSubstr("\"event\":\"resume\""));
}

}  // namespace
}  // namespace shoal::server

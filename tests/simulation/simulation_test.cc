// Seeds of the simulation: SHOAL_SIMULATION_SEEDS of them from SHOAL_SIMULATION_SEED on.
#include <cstdlib>
#include <set>

#include "core/base/testing/planted.h"
#include "core/base/threads/lock_order.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/minimise.h"
#include "tests/simulation/plants.h"
#include "tests/simulation/scenario.h"
#include "tests/simulation/seeds.h"
#include "tests/simulation/sim_world.h"

namespace shoal::simulation {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

TEST(SimulationTest, InvariantsHoldOverManySeeds) {
  StopCheckingLockOrder();
  const uint64_t first = FromEnvironment("SHOAL_SIMULATION_SEED", 1);
  const uint64_t count = FromEnvironment("SHOAL_SIMULATION_SEEDS", 2000);
  uint64_t done = 0;
  uint64_t faults = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const Outcome outcome = RunScenario(DrawScenario(seed));
    ASSERT_THAT(outcome.violations, IsEmpty()) << "shoal-sim --seed " << seed << " --minimise";
    done += outcome.ends == std::vector<std::string>{"done"} ? 1 : 0;
    faults += outcome.faults.empty() ? 0 : 1;
  }
  if (count >= 100) {  // else what goes wrong, or what goes well, was not tried
    EXPECT_GT(done, count / 4);
    EXPECT_GT(faults, count / 2);
  }
}

TEST(SimulationTest, ASeedGivesOneTraceAlsoFromTheListOfItsFaults) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    const Scenario scenario = DrawScenario(seed);
    const Outcome once = RunScenario(scenario);
    EXPECT_EQ(RunScenario(scenario).trace, once.trace) << "seed " << seed;
    EXPECT_EQ(RunScenario(scenario, once.faults).trace, once.trace) << "seed " << seed;
    EXPECT_NE(RunScenario(DrawScenario(seed + 1)).trace, once.trace) << "seed " << seed;
  }
}

// Proves that the checks can fail.
TEST(SimulationTest, ASampleThatCountsTwiceIsFound) {
  planted = "pushes-unchecked";  // or the coordinator sees it
  SimWorld world({.servers = 1, .workers = 1, .steps = 2});
  world.hook = [&world](const std::string_view point, int) {
    if (point == "prepare") {
      const SimHostedJob& hosted = *world.servers.server(0).hosted();
      const server::StepState state = hosted.core->state();
      const plan::PartitionSpec& partition = hosted.store->held().front().partition->spec();
      const std::vector<float> again(static_cast<size_t>(partition.count), 1.0f);
      hosted.core->TakePush({.incarnation = 7, .name = "test"},
                            {.incarnation = 7,
                             .generation = state.generation(),
                             .step = state.step(),
                             .attempt = state.attempt(),
                             .key = 1000,
                             .partition = partition.id,
                             .dtype = static_cast<uint32_t>(DType::kF32),
                             .count = partition.count},
                            {.bytes = std::as_bytes(std::span(again))});
    }
  };
  ASSERT_TRUE(world.Run());
  planted = "";
  EXPECT_THAT(world.Violations(), ::testing::Contains(::testing::HasSubstr("I3: step 1")));
}

TEST(SimulationTest, EveryPlantedBugIsFound) {
  StopCheckingLockOrder();
  static_assert(kPlants.size() >= 12);
  for (const Plant& plant : kPlants) {
    const Summary summary = RunSeeds({.count = 20000, .plant = plant.name, .until_failure = true});
    ASSERT_FALSE(summary.failures.empty()) << plant.name << ": " << plant.what;
    const uint64_t seed = summary.failures.begin()->first;
    EXPECT_THAT(RunScenario(DrawScenario(seed)).violations, IsEmpty()) << plant.name;
    RecordProperty(plant.name, static_cast<int>(summary.seeds));
  }
}

TEST(SimulationTest, AFailureIsMadeSmallAndSaidAsATest) {
  const std::string plant = "pack-forgotten";
  const Summary summary = RunSeeds({.count = 1000, .plant = plant, .until_failure = true});
  ASSERT_FALSE(summary.failures.empty());
  planted = plant;
  const Scenario scenario = DrawScenario(summary.failures.begin()->first);
  const size_t faults = RunScenario(scenario).faults.size();
  const Minimised minimised = Minimise(scenario);
  EXPECT_THAT(RunScenario(minimised.scenario, minimised.faults).violations, Not(IsEmpty()));
  planted = "";
  EXPECT_GT(faults, 2 * minimised.faults.size());
  EXPECT_LE(minimised.faults.size(), 3u) << "a worker that is lost, when there is a step";
  EXPECT_THAT(ToTest(minimised), ::testing::HasSubstr("RunScenario("));
}

// What seeds have found, with as few faults as it takes.

TEST(FoundTest, ARegistrationRepeatedOnAFullDiskKeepsItsMember) {
  SimWorld world(
      {.servers = 1, .workers = 1},
      Faults::FromList(1, {{FaultKind::kLoseReply, "worker-0>coordinator", 1, 2'000'000},
                           {FaultKind::kDiskFull, "coordinator", 90'000'000, 20'000'000}}));
  EXPECT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_TRUE(world.done().has_value()) << world.failure();
}

TEST(FoundTest, ACheckpointThatCompletesAfterALossIsWhereTheNextRunBegins) {
  const Outcome outcome = RunScenario({.options = {.seed = 491,
                                                   .servers = 4,
                                                   .workers = 1,
                                                   .steps = 1,
                                                   .samples = 6,
                                                   .checkpoint_every = 0,
                                                   .draw = true,
                                                   .lease_seconds = 0.29080830742052316,
                                                   .stays = true}},
                                      {{FaultKind::kFreeze, "coordinator", 56413023, 20349978795}});
  EXPECT_THAT(outcome.violations, IsEmpty());
  EXPECT_THAT(outcome.ends, ::testing::ElementsAre("done"));
}

TEST(FoundTest, AServerStartedAgainAtItsAddressIsALossAndNoMore) {
  const Outcome outcome =
      RunScenario({.options = {.workers = 1, .steps = 3, .checkpoint_every = 4, .stays = true}},
                  {{FaultKind::kKill, "server-1", 30'000'000, 1'000'000}});
  EXPECT_THAT(outcome.violations, IsEmpty());
  EXPECT_THAT(outcome.ends, ::testing::ElementsAre("done"));
}

// It was restarted at its address before the coordinator knew that it was lost.
TEST(FoundTest, AServerLetsGoOfAnEarlierRun) {
  const Outcome outcome =
      RunScenario({.options = {.seed = 39217,
                               .servers = 1,
                               .workers = 1,
                               .steps = 2,
                               .samples = 1,
                               .draw = true,
                               .lease_seconds = 2.6305246888842553,
                               .stays = true}},
                  {{FaultKind::kKill, "coordinator", 21681571, 5843287},
                   {FaultKind::kKill, "server-0", 26739093, 137328718},
                   {FaultKind::kLoseRequest, "worker-0>coordinator", 9, 19231990459}});
  EXPECT_THAT(outcome.violations, IsEmpty());
  EXPECT_THAT(outcome.ends, ::testing::ElementsAre("done"));
}

TEST(FoundTest, AStopAfterALossTellsTheStepThatIsSaved) {
  const Outcome outcome =
      RunScenario({.options = {.seed = 28334,
                               .servers = 3,
                               .workers = 1,
                               .steps = 2,
                               .samples = 2,
                               .checkpoint_every = 1,
                               .lease_seconds = 0.3548518217909198,
                               .stays = true}},
                  {{FaultKind::kCut, "server-2>coordinator", 79029885, 1533666363},
                   {FaultKind::kCut, "coordinator>server-1", 243057745, 1369638503},
                   {FaultKind::kStop, "job-0", 377575401, 0}});
  EXPECT_THAT(outcome.violations, IsEmpty());
  EXPECT_THAT(outcome.ends, ::testing::ElementsAre("interrupted"));
}

// Else a Commit of an earlier run that comes late is taken before its step is recorded.
TEST(FoundTest, ARunThatBeginsAgainHasOtherAttempts) {
  SimWorld world({.workers = 1, .steps = 3, .checkpoint_every = 4, .stays = true});
  std::set<std::pair<int64_t, int64_t>> sealed;
  std::set<int64_t> steps;
  world.hook = [&](const std::string_view point, int index) {
    if (point == "committed" && index == 0 && steps.size() == 2 && sealed.size() == 2) {
      world.loop.After(absl::Milliseconds(1), [&] { world.KillServer(1, absl::Seconds(5)); });
    }
    if (point == "commit" && index == 0) {
      const server::StepState state = world.servers.server(0).hosted()->core->state();
      EXPECT_TRUE(sealed.emplace(state.step(), state.attempt()).second);
      steps.insert(state.step());
    }
  };
  ASSERT_TRUE(world.Run());
  EXPECT_GT(sealed.size(), steps.size()) << "no step was done again: " << world.failure();
}

// Of servers that are not asked where they are yet, nothing is known that workers could be told.
TEST(FoundTest, NobodyJoinsWhileACommitOfAnEarlierLifeIsRepeated) {
  SimWorld world({.workers = 1, .stays = true},
                 Faults::FromList(1, {{FaultKind::kBuggify, "recorded", 2, 0}}));
  int asked = 0;
  world.hook = [&](const std::string_view point, int) {
    if (point == "commit" && world.coordinator().process().life() == 2 && asked++ == 0) {
      proto::JoinJobRequest request;
      request.set_incarnation(world.worker_incarnation(0));
      const auto reply = world.core().Join(request);
      ASSERT_TRUE(reply.ok()) << reply.status();
      EXPECT_FALSE(reply->has_value());
    }
  };
  EXPECT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_GT(asked, 0);
  EXPECT_TRUE(world.done().has_value()) << world.failure();
}

// The first job's run is over when the second job's begins, and no end is recorded.
TEST(FoundTest, ARunThatIsOverIsNotTakenOverBesideALaterOne) {
  const Outcome outcome =
      RunScenario({.options = {.seed = 490484,
                               .servers = 4,
                               .workers = 1,
                               .spares = 1,
                               .steps = 1,
                               .samples = 1,
                               .checkpoint_every = 0,
                               .on_server_loss = plan::OnServerLoss::kFail,
                               .lease_seconds = 0.9291666510545445,
                               .start_timeout_seconds = 20.609695096452114,
                               .recovery_timeout_seconds = 10.933356863922977,
                               .max_restarts = 0,
                               .stays = true,
                               .jobs = 3}},
                  {{FaultKind::kDiskFull, "coordinator", 6725922, 43332937},
                   {FaultKind::kKill, "coordinator", 9352701, 4572619},
                   {FaultKind::kClog, "coordinator>server-1", 26872134, 46706519},
                   {FaultKind::kBuggify, "planned", 2, 0}});
  EXPECT_THAT(outcome.violations, IsEmpty());
  EXPECT_THAT(outcome.ends, ::testing::ElementsAre("done", "done", "done"));
}

// One that was told to leave is not needed any more once its group is done, whatever it left out.
TEST(FoundTest, AStageThatLeavesHasRunItsPacks) {
  const Outcome outcome = RunScenario({.options = {.seed = 1049,
                                                   .servers = 4,
                                                   .workers = 2,
                                                   .stages = 2,
                                                   .steps = 2,
                                                   .samples = 2,
                                                   .checkpoint_every = 0,
                                                   .early_report = 0.16432907667109636,
                                                   .lease_seconds = 3.6639854798160707}},
                                      {{FaultKind::kLoseReply, "worker-0>server-3", 1, 45220558},
                                       {FaultKind::kDrain, "worker-1", 24258462, 13846226}});
  EXPECT_THAT(outcome.violations, IsEmpty());
}

// What it draws beyond its own it pushes as a second sum.
TEST(FoundTest, AFurtherRoundOfSumsIsAnotherPush) {
  const Outcome outcome =
      RunScenario({.options = {.seed = 16255,
                               .servers = 1,
                               .steps = 1,
                               .samples = 4,
                               .checkpoint_every = 0,
                               .draw = true,
                               .sums = true,
                               .lease_seconds = 0.5629663177386858}},
                  {{FaultKind::kBuggify, "reported", 1, 0},
                   {FaultKind::kKill, "worker-2", 126600027, 219379398},
                   {FaultKind::kBuggify, "a push is acknowledged and lost", 5, 0}});
  EXPECT_THAT(outcome.violations, IsEmpty());
}

// A full disk keeps members in the record that are none any more.
TEST(FoundTest, AServerIsInAJobOnce) {
  const Outcome outcome =
      RunScenario({.options = {.seed = 168233,
                               .servers = 3,
                               .workers = 1,
                               .steps = 4,
                               .samples = 2,
                               .sums = true,
                               .lease_seconds = 0.5701747667441176,
                               .start_timeout_seconds = 29.419182523930342,
                               .recovery_timeout_seconds = 27.928416483329062,
                               .stays = true,
                               .jobs = 2,
                               .limit = absl::Nanoseconds(120908402673)}},
                  {{FaultKind::kBuggify, "planned", 1, 0},
                   {FaultKind::kSucceed, "coordinator", 422924649, 143322364},
                   {FaultKind::kDrift, "server-0", 429091102, -49827},
                   {FaultKind::kCut, "worker-0>coordinator", 438523378, 7085796678},
                   {FaultKind::kDrift, "server-1", 440280319, -28562},
                   {FaultKind::kDiskFull, "coordinator", 563981754, 777433515},
                   {FaultKind::kJump, "coordinator", 705231848, 12292338304},
                   {FaultKind::kBuggify, "planned", 7, 0},
                   {FaultKind::kBuggify, "a push is acknowledged and lost", 11, 0},
                   {FaultKind::kBuggify, "a push is acknowledged and lost", 13, 0},
                   {FaultKind::kBuggify, "a push is acknowledged and lost", 18, 0},
                   {FaultKind::kBuggify, "planned", 11, 0}});
  EXPECT_THAT(outcome.violations, IsEmpty());
}

// Of two jobs, the first of which has ended without a record of that.
TEST(FoundTest, NoJobBeginsBesideOneThatIsTakenOver) {
  const Outcome outcome =
      RunScenario({.options = {.seed = 262801,
                               .servers = 1,
                               .workers = 4,
                               .stages = 2,
                               .steps = 1,
                               .samples = 1,
                               .checkpoint_every = 0,
                               .lease_seconds = 9.300048553980458,
                               .start_timeout_seconds = 18.523102068191633,
                               .recovery_timeout_seconds = 7.840268680972848,
                               .max_restarts = 5,
                               .stays = true,
                               .jobs = 3,
                               .limit = absl::Nanoseconds(120349557349)}},
                  {{FaultKind::kLoseRequest, "worker-3>coordinator", 1, 3051791},
                   {FaultKind::kDiskFull, "coordinator", 7379830, 10216896706},
                   {FaultKind::kPowerLoss, "coordinator", 272778101, 321067046},
                   {FaultKind::kBuggify, "reported", 6, 0},
                   {FaultKind::kBuggify, "takeover", 1, 0}});
  EXPECT_THAT(outcome.violations, IsEmpty());
}

TEST(FoundTest, AServerThatACallThatComesLateHasConfiguredIsLost) {
  const Outcome outcome = RunScenario({.options = {.seed = 250386,
                                                   .servers = 3,
                                                   .workers = 2,
                                                   .stages = 2,
                                                   .steps = 1,
                                                   .stop_after = 4,
                                                   .samples = 1,
                                                   .checkpoint_every = 0,
                                                   .lease_seconds = 9.990915314421466,
                                                   .start_timeout_seconds = 14.087797997451489,
                                                   .recovery_timeout_seconds = 19.460556841067124,
                                                   .max_restarts = 2,
                                                   .stays = true,
                                                   .limit = absl::Nanoseconds(122281475886)}},
                                      {{FaultKind::kRepeat, "coordinator>server-0", 2, 1424619870},
                                       {FaultKind::kLoseReply, "worker-1>server-2", 2, 17999989845},
                                       {FaultKind::kKill, "server-0", 733562674, 8457118}});
  EXPECT_THAT(outcome.violations, IsEmpty());
}

// The coordinator's next life finds a server that no longer holds the job.
TEST(FoundTest, AJobThatIsToFailByALossFailsByOneDuringARestartToo) {
  const Outcome outcome = RunScenario({.options = {.workers = 1,
                                                   .steps = 20,
                                                   .on_server_loss = plan::OnServerLoss::kFail,
                                                   .stays = true}},
                                      {{FaultKind::kKill, "coordinator", 100'000'000, 90'000'000},
                                       {FaultKind::kKill, "server-0", 101'000'000, 9'000'000}});
  EXPECT_THAT(outcome.violations, IsEmpty());
  EXPECT_THAT(outcome.ends, ::testing::ElementsAre(::testing::StartsWith("failed: server 0 ")));
}

// A move tells servers of an attempt, and the job's end of the one after it.
TEST(FoundTest, ServersThatHearOfTwoAttemptsInTheOtherOrderGoOnByTheLater) {
  const Outcome outcome = RunScenario({.options = {.seed = 905545,
                                                   .workers = 1,
                                                   .spares = 2,
                                                   .steps = 6,
                                                   .repeated_report = 0.3,
                                                   .lease_seconds = 0.7057006083059669,
                                                   .start_timeout_seconds = 15.484044603527494,
                                                   .recovery_timeout_seconds = 5.735095647043035,
                                                   .max_restarts = 1,
                                                   .jobs = 2}},
                                      {{FaultKind::kPowerLoss, "coordinator", 65008977, 3330500},
                                       {FaultKind::kLoseReply, "worker-0>server-1", 57, 677832},
                                       {FaultKind::kPowerLoss, "coordinator", 199220911, 218151378},
                                       {FaultKind::kDrain, "server-1", 242349638, 1257778973},
                                       {FaultKind::kDrain, "server-0", 417853863, 48275717}});
  EXPECT_THAT(outcome.violations, IsEmpty());
}

// State that did not come at the first try is readable once it has.
TEST(FoundTest, AServerPublishesWhatCameAtASecondTry) {
  const Outcome outcome =
      RunScenario({.options = {.seed = 940742,
                               .servers = 3,
                               .workers = 2,
                               .stages = 2,
                               .steps = 2,
                               .samples = 1,
                               .lease_seconds = 0.7688875356525812,
                               .start_timeout_seconds = 25.37707343634644,
                               .recovery_timeout_seconds = 7.710189779873647,
                               .max_restarts = 5},
                   .quiet_from = 2123260008},
                  {{FaultKind::kLoseReply, "worker-1>coordinator", 4, 23858103},
                   {FaultKind::kLoseReply, "coordinator>server-0", 6, 12663062494},
                   {FaultKind::kKill, "coordinator", 415871148, 1707388860},
                   {FaultKind::kKill, "worker-1", 566930413, 6272168},
                   {FaultKind::kRemove, "server-1", 646390010, 0},
                   {FaultKind::kClog, "server-2>server-1", 765554445, 1357705563},
                   {FaultKind::kKill, "coordinator", 835113924, 3852591},
                   {FaultKind::kLoseReply, "worker-1>coordinator", 13, 10875569889},
                   {FaultKind::kLoseReply, "coordinator>server-2", 16, 13184696839}});
  EXPECT_THAT(outcome.violations, IsEmpty());
}

TEST(MinimiseTest, WhatItPrintsIsInTheOrderOfTheDeclaration) {
  EXPECT_EQ(ToCode(SimOptions{.skip_nonfinite = true,
                              .sums = true,
                              .on_server_loss = plan::OnServerLoss::kFail,
                              .trace = true,
                              .jobs = 2,
                              .limit = absl::Nanoseconds(3)}),
            "{.skip_nonfinite = true, .sums = true, .on_server_loss = plan::OnServerLoss::kFail, "
            ".trace = true, .jobs = 2, .limit = absl::Nanoseconds(3)}");
}

// Whoever servers refuse, because they obey another, tells followers nothing of that.
TEST(SuccessionTest, FollowersOfTheEarlierCoordinatorGoOnAtTheLaterOne) {
  int followed_on = 0;
  for (const char* point : {"begin", "prepare", "commit", "committed", "pin", "write", "work"}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SimWorld world({.seed = seed, .workers = 2, .steps = 6, .stays = true});
      world.At(point, 4, [&] { world.Succeed(kNever); });
      ASSERT_TRUE(world.Run()) << point << ", seed " << seed;
      world.CheckEnds();
      ASSERT_THAT(world.violations(), IsEmpty()) << point << ", seed " << seed;
      const SimCommand::Followed& job = world.command().jobs().front();
      ASSERT_TRUE(job.end.has_value());
      ASSERT_TRUE(job.end->has_done())
          << point << ", seed " << seed << ": " << job.end->ShortDebugString();
      followed_on += job.end->term() == 2 ? 1 : 0;
    }
  }
  EXPECT_GT(followed_on, 50);
}

// No server hears of a shard map that the later one does not know.
TEST(SuccessionTest, AMoveUnderWayEndsBeforeItOrNotAtAll) {
  for (int milliseconds = 0; milliseconds < 6; ++milliseconds) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SimWorld world({.seed = seed, .workers = 2, .steps = 6, .stays = true});
      world.At("work", 4, [&] {
        proto::ScaleRequest fewer;
        fewer.set_servers(1);
        ASSERT_TRUE(world.Scale(fewer).ok());
      });
      world.At("fetch", 1, [&] {
        world.loop.After(absl::Milliseconds(milliseconds), [&] { world.Succeed(kNever); });
      });
      ASSERT_TRUE(world.Run()) << milliseconds << " ms, seed " << seed;
      world.CheckEnds();
      ASSERT_THAT(world.violations(), IsEmpty()) << milliseconds << " ms, seed " << seed;
      ASSERT_TRUE(world.has_successor());
      const SimCommand::Followed& job = world.command().jobs().front();
      EXPECT_TRUE(job.end.has_value() && job.end->has_done())
          << milliseconds << " ms, seed " << seed << ": " << job.end->ShortDebugString();
    }
  }
}

// Members have gone over with their job, and their leases end at the earlier coordinator.
TEST(SuccessionTest, TheEarlierCoordinatorTellsNoFailureOfWhatHasGoneOver) {
  int ended = 0;  // by itself
  for (const bool stays : {false, true}) {
    for (uint64_t seed = 1; seed <= 60; ++seed) {
      SimWorld world({.seed = seed, .workers = 2, .steps = 6, .max_restarts = 0, .stays = stays});
      SimProcess& earlier = world.coordinator().process();
      world.At("work", 4, [&] {
        world.Succeed(kNever);
        world.loop.After(absl::Milliseconds(20), [&] { earlier.clock().Jump(60'000'000'000); });
      });
      ASSERT_TRUE(world.Run()) << "seed " << seed;
      const SimCommand::Followed& job = world.command().jobs().front();
      EXPECT_FALSE(job.end.has_value() && job.end->has_failed() && job.end->term() == 1)
          << "seed " << seed << ": " << job.end->ShortDebugString();
      ended += earlier.alive() ? 0 : 1;
    }
  }
  EXPECT_GT(ended, 50);
}

}  // namespace
}  // namespace shoal::simulation

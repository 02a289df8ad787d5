// Validation, early stop and best checkpoint under simulation.
#include "core/base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/sim_world.h"

namespace shoal::server {
namespace {

using simulation::SimOptions;
using simulation::SimWorld;
using ::testing::ElementsAre;
using testing::FakeDisk;
using testing::FakeSteps;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// By step; each must have the loss of all of its samples, once each.
std::vector<int64_t> Validated(SimWorld& world) {
  std::vector<int64_t> steps;
  const double loss = world.job().LossOf(FakeSteps::kValidationStep);
  for (const proto::JobEvent& event : world.events()) {
    if (event.has_validation()) {
      EXPECT_DOUBLE_EQ(event.validation().loss(), loss);
      steps.push_back(event.validation().step());
    }
  }
  return steps;
}

TEST(ValidationTest, ComesAtItsStepsAndAfterTheLast) {
  for (const int workers : {1, 3, 5}) {
    SimWorld world({.workers = workers, .steps = 7, .validate_every = 3});
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value());
    EXPECT_EQ(world.done()->step(), 7);
    EXPECT_THAT(Validated(world), ElementsAre(3, 6, 7));
    EXPECT_EQ(world.works_given(), (7 + 3) * workers);
    EXPECT_EQ(world.done()->validation().step(), 7);
    EXPECT_EQ(world.done()->validation().best_step(), 3) << "all are alike";
    EXPECT_FALSE(world.done()->early());
  }
}

TEST(ValidationTest, IsInTheTimeline) {
  SimWorld world({.workers = 2, .steps = 4, .validate_every = 2, .trace = true});
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  int traces = 0;
  for (const proto::JobEvent& event : world.events()) {
    if (event.has_validation()) {
      EXPECT_EQ(traces, 2) << "of the workers, before it";
    }
    traces = event.has_trace() ? traces + 1 : 0;
  }
}

TEST(ValidationTest, GoesWithDrawnPacksAndSums) {
  for (const bool draw : {false, true}) {
    SimWorld world({.steps = 4, .samples = 12, .validate_every = 2, .draw = draw, .sums = !draw});
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    EXPECT_THAT(Validated(world), ElementsAre(2, 4));
  }
}

// Where a run ends before its last step it is as if it had not: a later one validates when it would
// have been.
TEST(ValidationTest, ARunThatStopsEarlierAddsNone) {
  FakeDisk disk;
  {
    SimWorld world({.steps = 8, .stop_after = 5, .validate_every = 3}, disk);
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    EXPECT_THAT(Validated(world), ElementsAre(3));
  }
  SimWorld again({.steps = 8, .validate_every = 3, .resume = true}, disk);
  std::string at_first_work;
  again.At("work", 1, [&] { at_first_work = again.metrics.Text(); });
  ASSERT_THAT(again.RunAndCheck(), IsEmpty());
  EXPECT_THAT(at_first_work, HasSubstr("\nshoal_train_best_validation_loss "));
  EXPECT_THAT(Validated(again), ElementsAre(6, 8));
  EXPECT_EQ(again.done()->validation().best_step(), 3) << "the checkpoint knew";
  EXPECT_EQ(again.done()->validation().since_best(), 2);
}

TEST(ValidationTest, OthersRunWhatALostWorkerHadInHand) {
  for (const bool drain : {false, true}) {
    SimWorld world({.workers = 3, .steps = 4, .samples = 12, .validate_every = 2});
    world.At("work", 3 * 2 + 2, [&] { drain ? world.DrainWorker(1) : world.KillWorker(1); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_EQ(world.done()->step(), 4);
    EXPECT_THAT(Validated(world), ElementsAre(2, 4));
  }
}

TEST(ValidationTest, LostAnswersAndRepeatedReportsChangeNothing) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    SimWorld world({.seed = seed,
                    .workers = 3,
                    .steps = 6,
                    .validate_every = 1,
                    .lost_reply = 0.3,
                    .repeated_report = 0.5,
                    .failed_report = 0.02,
                    .slow_worker = 0.2});
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_THAT(Validated(world), ElementsAre(1, 2, 3, 4, 5, 6));
  }
}

TEST(ValidationTest, AStopEndsItAndAResumeMakesUpForIt) {
  FakeDisk disk;
  {
    SimWorld world({.steps = 6, .validate_every = 2}, disk);
    world.At("work", 3 * 2 + 1, [&] { world.Stop(); });
    ASSERT_TRUE(world.Run());
    EXPECT_THAT(world.Violations(), IsEmpty());
    EXPECT_TRUE(world.done()->interrupted());
    EXPECT_EQ(world.done()->step(), 2);
    EXPECT_THAT(Validated(world), IsEmpty());
  }
  SimWorld again({.steps = 6, .validate_every = 2, .resume = true}, disk);
  ASSERT_THAT(again.RunAndCheck(), IsEmpty());
  EXPECT_THAT(Validated(again), ElementsAre(2, 4, 6));
}

// The loss of the simulation never changes.
TEST(ValidationTest, EndsAJobOnceNothingGetsBetterAndAResumeKnows) {
  FakeDisk disk;
  {
    SimWorld world({.steps = 20, .validate_every = 2, .patience = 3}, disk);
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value());
    EXPECT_THAT(Validated(world), ElementsAre(2, 4, 6, 8));
    EXPECT_EQ(world.done()->step(), 8);
    EXPECT_TRUE(world.done()->early());
    EXPECT_FALSE(world.done()->interrupted());
    EXPECT_TRUE(disk.complete.contains(8)) << "the last checkpoint";
  }
  {
    SimWorld again({.steps = 20, .validate_every = 2, .patience = 3, .resume = true}, disk);
    ASSERT_THAT(again.RunAndCheck(), IsEmpty());
    EXPECT_EQ(again.done()->step(), 8);
    EXPECT_TRUE(again.step_events().empty());
    EXPECT_THAT(Validated(again), IsEmpty());
  }
  SimWorld patient({.steps = 20, .validate_every = 2, .patience = 5, .resume = true}, disk);
  ASSERT_THAT(patient.RunAndCheck(), IsEmpty());
  EXPECT_EQ(patient.done()->step(), 12);
}

TEST(ValidationTest, AnInterruptedRunEndsWhereTheUndisturbedOneDoes) {
  FakeDisk disk;
  {
    SimWorld world({.steps = 20, .stop_after = 5, .validate_every = 2, .patience = 3}, disk);
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  }
  SimWorld again({.steps = 20, .validate_every = 2, .patience = 3, .resume = true}, disk);
  ASSERT_THAT(again.RunAndCheck(), IsEmpty());
  EXPECT_THAT(Validated(again), ElementsAre(6, 8));
  EXPECT_EQ(again.done()->step(), 8);
  EXPECT_TRUE(again.done()->early());
}

TEST(ValidationTest, TheBestHasACheckpoint) {
  SimWorld world({.steps = 6, .checkpoint_every = 0, .validate_every = 2, .keep_best = true});
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(world.disk.complete.size(), 2U);
  ASSERT_TRUE(world.disk.complete.contains(2)) << "the first of those alike";
  EXPECT_EQ(world.disk.complete.at(2).validation->best_step(), 2);
  EXPECT_TRUE(world.disk.complete.contains(6));
  EXPECT_EQ(world.done()->checkpoint(), "step-6");
  EXPECT_EQ(world.done()->best_checkpoint(), "step-2");
}

TEST(ValidationTest, IsToldInMetricsAndRecord) {
  SimWorld world({.steps = 4, .validate_every = 2});
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_validation_loss "));
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_best_validation_loss "));
  EXPECT_THAT(world.metrics.Text(), HasSubstr("phase=\"validation\""));
  EXPECT_THAT(world.disk.record, HasSubstr("\"event\":\"validation\""));
}

// Though no step is left.
TEST(ValidationTest, AFailureInTheLastOneIsTold) {
  SimWorld world({.workers = 1, .steps = 2, .validate_every = 5});
  world.At("work", 3, [&] { world.KillWorker(0); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_THAT(world.failure(), HasSubstr("still waiting for 1 worker"));
}

// In the middle of a validation, and between its record and the next step.
TEST(ValidationTest, ASuccessorGoesOnWhereTheCoordinatorWas) {
  for (const auto& [point, nth] :
       {std::pair{"work", 3 * 2 + 1}, {"work", 3 * 2 + 3}, {"work", 3 * 3 + 1}}) {
    SimWorld world({.steps = 6, .validate_every = 2, .stays = true});
    world.At(point, nth, [&] {
      world.coordinator().process().End();
      world.loop.After(absl::Milliseconds(300), [&] { world.coordinator().Start(); });
    });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty()) << point << " " << nth;
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_EQ(world.done()->step(), 6);
    EXPECT_THAT(Validated(world), ElementsAre(2, 4, 6));
  }
}

}  // namespace
}  // namespace shoal::server

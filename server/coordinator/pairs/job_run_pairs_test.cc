// What pairs of replies are compared with, under simulation: it is taken before step 1, in parts,
// once.
#include <algorithm>
#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/sim_world.h"

namespace shoal::server {
namespace {

using simulation::SimOptions;
using simulation::SimWorld;
using testing::FakeDisk;
using testing::FakeSteps;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kPairs = 3100;  // of which 4 parts are made; samples of step 2 are above 2000

int64_t Known(const std::vector<double>& references) {
  return std::ranges::count_if(references, [](double value) { return std::isfinite(value); });
}

void ExpectAll(const std::vector<double>& references) {
  ASSERT_EQ(std::ssize(references), 2 * kPairs);
  for (int64_t i = 0; i < 2 * kPairs; ++i) {
    ASSERT_EQ(references[static_cast<size_t>(i)], FakeSteps::LogProbability(i / 2, i % 2 == 0))
        << i;
  }
}

TEST(JobRunPairs, ReferencesComeBeforeTheFirstStepAlone) {
  for (const int workers : {1, 3}) {
    FakeDisk disk;
    {
      SimWorld world({.workers = workers, .steps = 2, .pairs = kPairs}, disk);
      ASSERT_THAT(world.RunAndCheck(), IsEmpty());
      ASSERT_TRUE(world.done().has_value()) << world.failure();
      EXPECT_EQ(world.works_given(), (4 + 2) * workers);
      ExpectAll(disk.references);
      for (const proto::StepEvent& event : world.step_events()) {
        EXPECT_EQ(event.preference().chosen_reward(), 0) << "the model never changes";
        EXPECT_LT(event.preference().chosen_log_probability(), -1);
      }
    }
    FakeDisk other;
    other.references = disk.references;
    SimWorld again({.workers = workers, .steps = 2, .pairs = kPairs}, other);
    ASSERT_THAT(again.RunAndCheck(), IsEmpty());
    EXPECT_EQ(again.works_given(), 2 * workers) << "what is kept is not taken again";
  }
}

TEST(JobRunPairs, AStopLosesNoPartThatIsWhole) {
  FakeDisk disk;
  {
    SimWorld world({.workers = 2, .steps = 2, .pairs = kPairs}, disk);
    world.At("work", 2 * 2 + 1, [&] { world.Stop(); });
    ASSERT_TRUE(world.Run());
    EXPECT_THAT(world.Violations(), IsEmpty());
    EXPECT_TRUE(world.done()->interrupted());
  }
  EXPECT_EQ(Known(disk.references), 2 * 2 * 1024);
  SimWorld again({.workers = 2, .steps = 2, .pairs = kPairs, .resume = true}, disk);
  ASSERT_THAT(again.RunAndCheck(), IsEmpty());
  EXPECT_EQ(again.works_given(), (2 + 2) * 2) << "two parts, two steps";
  ExpectAll(disk.references);
}

TEST(JobRunPairs, TheyAreTheSameWhateverGoesWrong) {
  for (const uint64_t seed : {1, 2, 3, 4}) {
    SimWorld world({.seed = seed,
                    .workers = 3,
                    .steps = 2,
                    .pairs = kPairs,
                    .draw = seed % 2 == 0,
                    .lost_reply = 0.3,
                    .repeated_report = 0.5,
                    .failed_report = 0.02,
                    .slow_worker = 0.2});
    world.At("work", 5, [&] { world.KillWorker(1); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    ExpectAll(world.disk.references);
  }
}

TEST(JobRunPairs, ASuccessorGoesOnWithThem) {
  SimWorld world({.steps = 2, .pairs = kPairs, .stays = true});
  world.At("work", 3 * 2 + 1, [&] {
    world.coordinator().process().End();
    world.loop.After(absl::Milliseconds(300), [&] { world.coordinator().Start(); });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  ExpectAll(world.disk.references);
}

// The model of step 1 is another.
TEST(JobRunPairs, AfterStepOneTheyCannotBeMade) {
  FakeDisk disk;
  {
    SimWorld world({.steps = 2, .stop_after = 1, .pairs = kPairs}, disk);
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  }
  disk.references.clear();
  SimWorld again({.steps = 2, .pairs = kPairs, .resume = true}, disk);
  ASSERT_TRUE(again.Run());
  EXPECT_THAT(again.failure(), HasSubstr("made before step 1, are gone: reference.f64 is not"));
}

// Of the last step no other follows, and its validation compares with them, too.
TEST(JobRunPairs, NorForTheLastValidation) {
  const SimOptions options = {.workers = 1, .steps = 2, .validate_every = 2, .pairs = kPairs};
  const auto stop_in_it = [&](FakeDisk& disk) {
    SimWorld world(options, disk);
    world.At("work", 4 + 1 + 2 + 1, [&] { world.Stop(); });
    ASSERT_TRUE(world.Run());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_EQ(world.done()->step(), 2);
    EXPECT_FALSE(world.done()->has_validation());
  };
  SimOptions resumed = options;
  resumed.resume = true;
  for (const bool kept : {true, false}) {
    FakeDisk disk;
    stop_in_it(disk);
    if (!kept) {
      disk.references.clear();
    }
    SimWorld again(resumed, disk);
    ASSERT_TRUE(again.Run());
    EXPECT_EQ(again.done().has_value() && again.done()->has_validation(), kept);
    if (!kept) {
      EXPECT_THAT(again.failure(), HasSubstr("are gone: reference.f64 is not"));
    }
  }
}

}  // namespace
}  // namespace shoal::server

// Many seeds with random faults of every kind: no step is committed twice or skipped, every sample
// counts exactly once in its step, a resumed job continues from its checkpoint, and nothing hangs.
// A failure prints its seed.
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/testing/sim_world.h"

namespace shoal::server {
namespace {

using testing::FakeDisk;
using ::testing::IsEmpty;
using testing::SimOptions;
using testing::SimWorld;

// Kills or stops at a random moment, in about two of three runs. True if this may end the run.
bool InjectFault(SimWorld& world, const SimOptions& options, Random& random) {
  const absl::Duration when = absl::Milliseconds(random.Between(0, 200));
  switch (random.Below(6)) {
    case 0:
    case 1:
      world.loop.After(when,
                       [&world, index = random.Below(static_cast<uint64_t>(options.servers))] {
                         world.KillServer(static_cast<int>(index));
                       });
      return true;
    case 2:
      world.loop.After(when,
                       [&world, index = random.Below(static_cast<uint64_t>(options.workers))] {
                         world.KillWorker(static_cast<int>(index));
                       });
      return true;
    case 3:
      world.loop.After(when, [&world] { world.Stop(); });
      return true;
    default:
      return false;
  }
}

TEST(SimulationTest, InvariantsHoldOverManySeeds) {
  const char* first = std::getenv("SHOAL_SIMULATION_SEED");  // replays one
  const uint64_t begin = first == nullptr ? 1 : std::strtoull(first, nullptr, 10);
  const uint64_t end = first == nullptr ? 400 : begin;
  int done = 0;
  int failed = 0;
  for (uint64_t seed = begin; seed <= end; ++seed) {
    SCOPED_TRACE(::testing::Message() << "SHOAL_SIMULATION_SEED=" << seed);
    Random random(seed, 77);
    SimOptions options = {.seed = seed,
                          .servers = static_cast<int>(random.Between(1, 4)),
                          .workers = static_cast<int>(random.Between(1, 6)),
                          .steps = random.Between(1, 12),
                          .samples = random.Between(1, 20),
                          .checkpoint_every = random.Between(0, 4),
                          .draw = random.Below(2) == 0,
                          .lost_reply = random.Below(2) == 0 ? 0.1 : 0,
                          .repeated_report = 0.3,
                          .failed_report = random.Below(3) == 0 ? 0.05 : 0,
                          .slow_worker = 0.05};
    const bool draw = options.draw;
    FakeDisk disk;
    bool finished = false;
    for (int life = 0; life < 12 && !finished; ++life) {
      options.seed = seed * 100 + static_cast<uint64_t>(life);
      options.servers = static_cast<int>(random.Between(1, 4));  // resumes with any number
      options.workers = static_cast<int>(random.Between(1, 6));
      // Sometimes uses groups of several stages; drawing is for single workers.
      options.stages = random.Below(2) == 0 ? static_cast<int>(random.Between(1, 4)) : 1;
      options.workers *= options.stages;
      options.draw = draw && options.stages == 1;
      options.resume = life > 0;
      const int64_t saved = disk.complete.empty() ? 0 : disk.complete.rbegin()->first;
      SimWorld world(options, disk);
      const bool faulty = InjectFault(world, options, random);
      ASSERT_THAT(world.RunAndCheck(), IsEmpty()) << "in life " << life;
      if (!world.step_events().empty()) {
        ASSERT_EQ(world.step_events().front().step(), saved + 1);
      }
      finished = world.done().has_value() && !world.done()->interrupted();
      if (!faulty && options.failed_report == 0) {
        ASSERT_TRUE(finished) << world.failure();
      }
      ++(world.done().has_value() ? done : failed);
    }
  }
  if (first == nullptr) {
    // Both outcomes must occur, or the faults had no effect.
    EXPECT_GT(done, 100);
    EXPECT_GT(failed, 100);
  }
}

// Proves that the checks can fail.
TEST(SimulationTest, APlantedDoubleCountIsFound) {
  SimWorld world({.servers = 1, .workers = 1, .steps = 2});
  world.servers.hook = [&world](const std::string& point, int) {
    if (point == "prepare") {
      world.servers.server(0).samples.insert(2000);
    }
  };
  ASSERT_TRUE(world.Run());
  EXPECT_THAT(world.Violations(), ::testing::Not(IsEmpty()));
}

}  // namespace
}  // namespace shoal::server

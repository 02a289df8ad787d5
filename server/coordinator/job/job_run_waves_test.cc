// State that moves in waves with steps between, as wishes with a rate have it, under simulation.
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/testing/status.h"
#include "core/job/shard_map_message.h"
#include "fmt/format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/sim_world.h"

namespace shoal::server {
namespace {

using simulation::SimOptions;
using simulation::SimWorld;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class WavesTest : public ::testing::Test {
 protected:
  // The first wave is of one partition.
  static SimOptions Options(int64_t steps) {
    return {.servers = 1,
            .spare_servers = 2,
            .workers = 2,
            .steps = steps,
            .exact = true,
            .wave_bytes = 1,
            .stays = true};
  }
  static proto::ScaleRequest Wish(int64_t servers) {
    proto::ScaleRequest request;
    request.set_servers(servers);
    request.set_rate(int64_t{1} << 40);  // no wave waits for it
    return request;
  }
  // The question of a worker that joins knowing the map of that generation; 0: none.
  static proto::JoinJobRequest Knowing(SimWorld& world, int worker, int64_t generation) {
    proto::JoinJobRequest request;
    request.set_incarnation(world.worker_incarnation(worker));
    if (generation > 0) {
      request.mutable_known()->set_job_id(world.job_id());
      request.mutable_known()->set_run(world.servers.server(0).hosted()->request().run());
      request.mutable_known()->set_generation(generation);
    }
    return request;
  }
  void Look(SimWorld& world) {
    if (const auto reply = world.Scale({}); reply.ok()) {
      last = *reply;
    }
  }

  proto::ScaleReply last;
};

// Of one partition at first; steps run between them, and all of them move what one would.
TEST_F(WavesTest, AWishIsMetInWavesWithStepsBetween) {
  SimWorld world(Options(/*steps=*/60));
  int64_t dry = 0;
  world.At("committed", 2, [&] {
    proto::ScaleRequest request = Wish(3);
    request.set_dry_run(true);
    dry = world.Scale(request)->bytes_moved();
    EXPECT_EQ(world.Scale(Wish(3))->bytes_left(), dry);
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  Look(world);
  EXPECT_EQ(last.servers(), 3);
  EXPECT_EQ(last.bytes_moved(), dry);
  EXPECT_EQ(last.bytes_left(), 0);
  EXPECT_LE(last.imbalance(), 1);
  ASSERT_GE(last.waves_size(), 2);
  EXPECT_EQ(last.waves_size(), last.partitions_moved());
  for (int wave = 1; wave < last.waves_size(); ++wave) {
    EXPECT_GT(last.waves(wave).step(), last.waves(wave - 1).step());
    EXPECT_GT(last.waves(wave).pause_seconds(), 0);
  }
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_move_left_bytes 0"));
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_dropped_attempts_total 0"));
}

TEST_F(WavesTest, AWishBetweenWavesIsPlannedFromWherePartitionsAre) {
  for (const int64_t wish : {1, 2, 0}) {
    SimWorld world(Options(/*steps=*/60));
    int64_t left = 0;
    world.At("committed", 2, [&] { EXPECT_TRUE(world.Scale(Wish(3)).ok()); });
    world.At("fetch", 1, [&] {
      proto::ScaleRequest request = Wish(wish);
      request.set_cancel(wish == 0);
      const auto reply = world.Scale(request);
      ASSERT_TRUE(reply.ok()) << reply.status();
      left = reply->bytes_left();
    });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    Look(world);
    EXPECT_EQ(last.wanted(), last.servers());
    EXPECT_EQ(last.bytes_left(), 0);
    if (wish == 0) {
      EXPECT_EQ(left, 0);
      EXPECT_EQ(last.servers(), 2);
      EXPECT_EQ(last.waves_size(), 1) << "the one under way is the last";
    } else {
      EXPECT_EQ(last.servers(), wish);
      EXPECT_LE(last.imbalance(), 1);
    }
    EXPECT_EQ(last.rollbacks(), 0);
  }
}

// What is left of the plan of before is not what the newest wish wants.
TEST_F(WavesTest, AWishDuringALaterWaveIsNotTakenForThatOfBefore) {
  SimOptions options = Options(/*steps=*/60);
  options.model_growth = 4;
  for (const int wave : {2, 3}) {  // over the same servers as the wave before
    SimWorld world(options);
    world.At("committed", 2, [&] { EXPECT_TRUE(world.Scale(Wish(2)).ok()); });
    world.At("fetch", wave, [&] { EXPECT_TRUE(world.Scale(Wish(1)).ok()); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    Look(world);
    EXPECT_EQ(last.servers(), 1) << "wave " << wave;
    EXPECT_EQ(last.bytes_left(), 0);
    EXPECT_EQ(last.rollbacks(), 0);
  }
}

// It makes room for all waves of the wish, which says nothing of how long the next one takes.
TEST_F(WavesTest, ALongReserveMakesNoSmallWave) {
  SimOptions options = Options(/*steps=*/60);
  options.model_growth = 4;
  options.wave_bytes = 2 * 64 * 12;          // two partitions
  std::optional<simulation::Fault> held_up;  // the answer
  const auto run = [&](const std::vector<simulation::Fault>& faults) {
    SimWorld world(options, simulation::Faults::FromList(options.seed, faults));
    world.hook = [&, before = world.hook](const char* point, int index) {
      before(point, index);
      if (point == std::string_view("reserve") && !held_up.has_value()) {
        held_up = {simulation::FaultKind::kClog, fmt::format("server-{}>coordinator", index),
                   world.loop.now(), 1'000'000'000};
      }
    };
    world.At("committed", 2, [&] { EXPECT_TRUE(world.Scale(Wish(3)).ok()); });
    EXPECT_THAT(world.RunAndCheck(), IsEmpty());
    Look(world);
  };
  run({});
  ASSERT_TRUE(held_up.has_value());
  EXPECT_LT(last.waves(0).pause_seconds(), 0.1);
  run({*held_up});
  EXPECT_GT(last.waves(0).pause_seconds(), 1);
  ASSERT_GE(last.waves_size(), 2);
  EXPECT_EQ(last.waves(1).bytes(), 2 * last.waves(0).bytes());
}

// By the very next map workers go on with the connections that they have.
TEST_F(WavesTest, TheNextMapComesOnlyWhereAnEarlierWaveReservedWhatItBrings) {
  SimOptions options = Options(/*steps=*/60);
  options.servers = 3;
  options.spare_servers = 0;
  SimWorld world(options);
  std::vector<int64_t> generations;
  world.hook = [&, before = world.hook](const char* point, int index) {
    before(point, index);
    if (point == std::string_view("committed")) {
      const int64_t now = world.servers.server(0).hosted()->core->state().generation();
      if (generations.empty() || generations.back() != now) {
        generations.push_back(now);
      }
    }
  };
  size_t earlier = 0;
  world.At("committed", 2, [&] { EXPECT_TRUE(world.Scale(Wish(2)).ok()); });
  world.At("committed", 30, [&] {
    earlier = generations.size();
    EXPECT_TRUE(world.Scale(Wish(1)).ok());
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_EQ(earlier, 2U);
  ASSERT_GE(generations.size(), 4U) << "two waves";
  EXPECT_EQ(generations[2], generations[1] + 2) << "nobody had reserved it";
  EXPECT_EQ(generations[3], generations[2] + 1);
}

TEST_F(WavesTest, ACancelIsKeptOverARestartOfTheCoordinator) {
  SimWorld world(Options(/*steps=*/60));
  int waves = 0;
  world.hook = [&waves, before = world.hook](const char* point, int index) {
    before(point, index);
    waves += point == std::string_view("fetch") ? 1 : 0;
  };
  world.At("committed", 2, [&] { EXPECT_TRUE(world.Scale(Wish(3)).ok()); });
  world.At("fetch", 1, [&] {
    proto::ScaleRequest cancel;
    cancel.set_cancel(true);
    EXPECT_TRUE(world.Scale(cancel).ok());
  });
  world.At("committed", 20, [&] {
    world.loop.After(absl::ZeroDuration(), [&] {
      world.coordinator().process().End();
      world.loop.After(absl::Seconds(0.2), [&] { world.coordinator().Start(); });
    });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(waves, 1);
}

// With the rate that they were wished with.
TEST_F(WavesTest, ANextLifeOfTheCoordinatorGoesOnWithTheWavesThatAreLeft) {
  SimWorld world(Options(/*steps=*/400));
  world.At("committed", 2, [&] {
    proto::ScaleRequest request = Wish(3);
    request.set_rate(500);
    EXPECT_TRUE(world.Scale(request).ok());
  });
  world.At("fetch", 1, [&] {
    world.loop.After(absl::Milliseconds(300), [&] {
      Look(world);
      world.coordinator().process().End();
      world.loop.After(absl::Seconds(0.2), [&] { world.coordinator().Start(); });
    });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_GT(last.bytes_left(), 0);
  const int64_t moved = last.bytes_moved();
  const int64_t all = moved + last.bytes_left();
  Look(world);
  EXPECT_EQ(last.servers(), 3);
  EXPECT_LE(last.imbalance(), 1);
  EXPECT_LE(moved + last.bytes_moved(), all);
}

// No step begins between waves.
TEST_F(WavesTest, WhoIsToLeaveIsLetGoWhileThereAreNoWorkers) {
  SimOptions options = Options(/*steps=*/60);
  options.servers = 3;
  options.spare_servers = 0;
  options.workers = 1;
  SimWorld world(options);
  bool left = false;
  world.At("committed", 3, [&] { EXPECT_TRUE(world.Scale(Wish(2)).ok()); });
  world.At("fetch", 1, [&] {
    world.KillWorker(0, absl::Seconds(4));
    world.loop.After(absl::Seconds(1), [&] { world.DrainServer(0); });
    world.loop.After(absl::Seconds(3), [&] { left = world.servers.process(0).life() == 2; });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_TRUE(left);
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.done()->step(), 60);
}

// Servers, map and formations are what they were, and nobody hears of what was to be.
TEST_F(WavesTest, AWaveThatCannotBeRecordedHasNotBeen) {
  SimWorld world(Options(/*steps=*/60));
  const auto joins = [&](int64_t known) {
    const auto reply = world.core().Join(Knowing(world, 0, known));
    EXPECT_TRUE(reply.ok() && reply->has_value());
    return reply.ok() ? reply->value_or(proto::JoinJobReply()) : proto::JoinJobReply();
  };
  bool refuses = false;
  bool refused = false;
  bool looked = false;
  proto::JoinJobReply whole;
  world.store->refuse = [&, before = world.store->refuse]() -> absl::Status {
    if (std::exchange(refuses, false)) {
      refused = true;
      return absl::ResourceExhaustedError("no room for the map");
    }
    return before();
  };
  world.hook = [&, before = world.hook](const char* point, int index) {
    before(point, index);
    if (point != std::string_view("work") || !refused || std::exchange(looked, true)) {
      return;
    }
    const int64_t generation = whole.shard_map().generation();
    EXPECT_EQ(world.servers.server(0).hosted()->core->state().generation(), generation);
    EXPECT_EQ(joins(0).SerializeAsString(), whole.SerializeAsString());
    EXPECT_EQ(joins(generation + 1).SerializeAsString(), whole.SerializeAsString());
    const auto change = plan::ChangeFromBytes(joins(generation).map_change());
    EXPECT_TRUE(change->partitions.empty());
    EXPECT_EQ(change->to, generation);
    EXPECT_EQ(joins(generation).servers_size(), 0);
    Look(world);
    EXPECT_EQ(last.servers(), 1);
    EXPECT_EQ(last.wanted(), 1);
    EXPECT_EQ(last.rollbacks(), 1);
    EXPECT_EQ(last.bytes_moved(), 0);
    EXPECT_THAT(last.refusal(), HasSubstr("no room for the map"));
    EXPECT_TRUE(world.Scale(Wish(3)).ok());
  };
  world.At("committed", 2, [&] {
    whole = joins(0);
    EXPECT_TRUE(world.Scale(Wish(3)).ok());
  });
  world.At("fetch", 1, [&] { refuses = true; });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_TRUE(looked);
  Look(world);
  EXPECT_EQ(last.servers(), 3);
  EXPECT_EQ(last.bytes_left(), 0);
}

// Both between two waves and while one goes on; what was planned for the wish of before is used for
// no other.
TEST_F(WavesTest, OfWishesThatFollowEachOtherTheNewestIsMet) {
  SimOptions options = Options(/*steps=*/60);
  options.model_growth = 4;
  for (const bool between : {false, true}) {
    for (const std::vector<int64_t>& wishes :
         {std::vector<int64_t>{2, 1}, {1, 2}, {2, 3}, {3, 1, 3}}) {
      SimWorld world(options);
      bool wished = false;
      int64_t left = 0;
      world.hook = [&, before = world.hook](const char* point, int index) {
        before(point, index);
        Look(world);
        if (wished || last.waves_size() < 2 ||
            point != std::string_view(between ? "committed" : "fetch")) {
          return;
        }
        wished = true;
        for (const int64_t wish : wishes) {
          const auto reply = world.Scale(Wish(wish));
          ASSERT_TRUE(reply.ok()) << reply.status();
          EXPECT_EQ(reply->wanted(), wish);
          left = reply->bytes_left();
        }
      };
      world.At("committed", 2, [&] { EXPECT_TRUE(world.Scale(Wish(3)).ok()); });
      ASSERT_THAT(world.RunAndCheck(), IsEmpty());
      ASSERT_TRUE(world.done().has_value()) << world.failure();
      EXPECT_TRUE(wished);
      Look(world);
      EXPECT_EQ(last.servers(), wishes.back());
      EXPECT_EQ(last.bytes_left(), 0);
      EXPECT_LE(last.imbalance(), 1);
      EXPECT_EQ(last.rollbacks(), 0);
      if (between) {
        EXPECT_EQ(last.bytes_moved(), left);
      }
    }
  }
}

TEST_F(WavesTest, ARateKeepsWavesApart) {
  const auto steps_for = [&](int64_t rate) {
    SimWorld world(Options(/*steps=*/400));
    world.At("committed", 2, [&] {
      proto::ScaleRequest request = Wish(3);
      request.set_rate(rate);
      EXPECT_TRUE(world.Scale(request).ok());
    });
    EXPECT_THAT(world.RunAndCheck(), IsEmpty());
    Look(world);
    EXPECT_EQ(last.servers(), 3);
    EXPECT_EQ(last.bytes_left(), 0);
    return last.waves().rbegin()->step() - last.waves(0).step();
  };
  EXPECT_GT(steps_for(500), 2 * steps_for(int64_t{1} << 40));
  EXPECT_EQ(steps_for(0), 0) << "all at once";
}

// Each wish is met before the next: those that went load the job once more.
TEST_F(WavesTest, AServerThatWentComesAgain) {
  SimWorld world(Options(/*steps=*/120));
  int next = 0;
  const std::vector<int64_t> wishes = {3, 1, 3};
  world.hook = [&, before = world.hook](const char* point, int index) {
    before(point, index);
    if (point != std::string_view("committed") || next == 3) {
      return;
    }
    Look(world);
    if (next == 0 || (last.servers() == wishes[static_cast<size_t>(next) - 1] && !last.moving())) {
      EXPECT_TRUE(world.Scale(Wish(wishes[static_cast<size_t>(next++)])).ok());
    }
  };
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(next, 3);
  Look(world);
  EXPECT_EQ(last.servers(), 3);
  EXPECT_EQ(last.rollbacks(), 0);
}

}  // namespace
}  // namespace shoal::server

// Servers that are added to a job and taken away while it trains, under simulation: bits are
// compared with those of a run in which nothing happens.
#include <functional>
#include <memory>
#include <string_view>
#include <tuple>

#include "core/base/status.h"
#include "core/base/testing/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/sim_world.h"

namespace shoal::server {
namespace {

using simulation::SimOptions;
using simulation::SimWorld;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class MoveTest : public ::testing::Test {
 protected:
  static SimOptions Options() {
    return {
        .servers = 1, .spare_servers = 2, .workers = 2, .steps = 12, .exact = true, .stays = true};
  }
  static proto::ScaleRequest Wish(int64_t servers) {
    proto::ScaleRequest request;
    request.set_servers(servers);
    return request;
  }
  static proto::ScaleRequest Drain(int server) {
    proto::ScaleRequest request;
    request.set_drain(server);
    return request;
  }
  void Look(SimWorld& world) {
    if (const auto reply = world.Scale({}); reply.ok()) {
      last = *reply;
    }
  }
  static bool Recorded(SimWorld& world, const std::string& text) {
    return world.disk.record.find(text) != std::string::npos;
  }
  static int Holders(SimWorld& world) {
    int holders = 0;
    for (int server = 0; server < world.servers.count(); ++server) {
      const auto* hosted = world.servers.server(server).hosted();
      holders += hosted != nullptr && !hosted->store->held().empty() ? 1 : 0;
    }
    return holders;
  }

  proto::ScaleReply last;
};

TEST_F(MoveTest, MoreServersAndFewerWithTheSameBits) {
  SimWorld world(Options());
  std::vector<int> holders;
  const auto scale = [&](int64_t servers) {
    holders.push_back(Holders(world));
    const auto reply = world.Scale(Wish(servers));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->wanted(), servers);
  };
  world.At("committed", 2, [&] { scale(3); });
  world.At("committed", 11, [&] { scale(2); });
  world.At("committed", 20, [&] {
    Look(world);
    scale(1);
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.done()->step(), 12);
  EXPECT_EQ(holders, (std::vector<int>{1, 3, 2}));
  EXPECT_EQ(last.servers(), 2);
  EXPECT_EQ(last.rollbacks(), 0);
  EXPECT_EQ(last.waves_size(), 1);
  EXPECT_EQ(last.bytes_left(), 0);
  EXPECT_GT(last.bytes_moved(), 0);
  EXPECT_LE(last.imbalance(), 1);
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_dropped_attempts_total 0"));
}

TEST_F(MoveTest, ADryRunAndAWishThatCannotBeMoveNothing) {
  SimWorld world(Options());
  world.At("committed", 2, [&] {
    proto::ScaleRequest request = Wish(3);
    request.set_dry_run(true);
    const auto reply = world.Scale(request);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_GT(reply->bytes_moved(), 0);
    EXPECT_GE(reply->bytes_moved(), reply->least_bytes());
    for (const int64_t wrong : {-1, 6, 1 << 20}) {
      EXPECT_EQ(world.Scale(Wish(wrong)).status().code(), absl::StatusCode::kInvalidArgument);
    }
  });
  world.At("committed", 6, [&] { EXPECT_EQ(world.Scale({})->wanted(), 1); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(world.done()->step(), 12);
}

TEST_F(MoveTest, WithoutEnoughServersTheJobTrainsOnUntilTheWishIsCancelled) {
  SimOptions options = Options();
  options.spare_servers = 1;
  SimWorld world(options);
  world.At("committed", 2, [&] { EXPECT_TRUE(world.Scale(Wish(3)).ok()); });
  world.At("committed", 8, [&] {
    EXPECT_EQ(world.Scale({})->servers(), 1);
    proto::ScaleRequest cancel;
    cancel.set_cancel(true);
    EXPECT_EQ(world.Scale(cancel)->wanted(), 1);
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(world.done()->step(), 12);
}

// What comes with it was offered for the first wish too.
TEST_F(MoveTest, AWishDuringAMoveIsMetAfterAStepByItsMap) {
  SimWorld world(Options());
  world.At("committed", 2, [&] { EXPECT_TRUE(world.Scale(Wish(2)).ok()); });
  world.At("fetch", 1, [&] { EXPECT_TRUE(world.Scale(Wish(3)).ok()); });
  int holders = 0;
  world.At("committed", 18, [&] {
    Look(world);
    holders = Holders(world);
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(holders, 3);
  EXPECT_EQ(last.servers(), 3);
  EXPECT_EQ(last.rollbacks(), 0);
}

// Servers hear of the map while no step can begin, or nobody could join by it.
TEST_F(MoveTest, WorkersThatLeaveInAMoveComeAgain) {
  for (const char* point : {"reserve", "fetch"}) {
    SimOptions options = Options();
    options.workers = 1;
    SimWorld world(options);
    world.At("committed", 2, [&] { EXPECT_TRUE(world.Scale(Wish(2)).ok()); });
    world.At(point, 1, [&] { world.DrainWorker(0); });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty()) << point;
    ASSERT_TRUE(world.done().has_value()) << point << ": " << world.failure();
    EXPECT_EQ(world.done()->step(), 12) << point;
    Look(world);
    EXPECT_EQ(last.servers(), 2) << point;
  }
}

// Whose next one is due before each is written.
TEST_F(MoveTest, CheckpointsWithoutEndHoldAMoveUpForTwoOfThem) {
  SimOptions options = Options();
  options.checkpoint_every = 1;
  SimWorld world(options);
  world.servers.checkpoint_time = absl::Seconds(2);
  world.At("committed", 2, [&] { EXPECT_TRUE(world.Scale(Wish(2)).ok()); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  Look(world);
  ASSERT_EQ(last.waves_size(), 1);
  EXPECT_LE(last.waves(0).step(), 6);
  EXPECT_EQ(world.disk.complete.size(), 12U);
}

TEST_F(MoveTest, AValidationThatIsDueBeginsWithTheNewServers) {
  SimOptions options = Options();
  options.validate_every = 2;
  options.keep_best = true;
  SimWorld world(options);
  for (const auto& [nth, servers] : {std::pair{2, 3}, {8, 1}, {14, 2}}) {
    world.At("committed", nth,
             [&world, wished = servers] { EXPECT_TRUE(world.Scale(Wish(wished)).ok()); });
  }
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  Look(world);
  EXPECT_EQ(last.servers(), 2);
  EXPECT_EQ(last.rollbacks(), 0);
  EXPECT_EQ(world.done()->step(), 12);
}

// A server that is told to leave, whichever it is, at a point of a step.
class DrainTest : public MoveTest,
                  public ::testing::WithParamInterface<std::tuple<const char*, int>> {};

TEST_P(DrainTest, WhoIsToldToLeaveGivesWhatItHoldsAndItsNextLifeGetsItBack) {
  const auto& [point, nth] = GetParam();
  SimOptions options = Options();
  options.servers = 3;
  options.spare_servers = 0;
  options.steps = 200;
  SimWorld world(options);
  world.At(point, nth,
           [&] { world.loop.After(absl::ZeroDuration(), [&] { world.DrainServer(1); }); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.done()->step(), 200);
  Look(world);
  EXPECT_EQ(last.servers(), 3);
  EXPECT_EQ(last.wanted(), 3);
  EXPECT_EQ(last.rollbacks(), 0);
  EXPECT_EQ(world.servers.process(1).life(), 2);
  EXPECT_TRUE(Recorded(world, "\"draining\""));
  EXPECT_TRUE(Recorded(world, "\"servers\":2,\"servers_before\":3"));
  EXPECT_THAT(world.metrics.Text(), HasSubstr("shoal_train_dropped_attempts_total 0"));
}

INSTANTIATE_TEST_SUITE_P(Training, DrainTest,
                         ::testing::Combine(::testing::Values("begin", "work", "prepare", "commit",
                                                              "committed", "pin", "write"),
                                            ::testing::Values(2, 5)),
                         [](const auto& info) {
                           return fmt::format("{}_{}", std::get<0>(info.param),
                                              std::get<1>(info.param));
                         });

TEST_F(MoveTest, AServerGoesByWishAndAnotherIsNotWanted) {
  SimOptions options = Options();
  options.servers = 3;
  options.steps = 200;
  SimWorld world(options);
  world.At("committed", 5, [&] {
    const auto reply = world.Scale(Drain(0));
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->wanted(), 2);
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  Look(world);
  EXPECT_EQ(last.servers(), 2);
  EXPECT_EQ(world.servers.process(0).life(), 2) << "it ended, and was started again";
  EXPECT_TRUE(world.servers.server(0).hosted() == nullptr);
}

TEST_F(MoveTest, ADrainThatCannotBeMovesNothing) {
  SimOptions options = Options();
  options.servers = 3;
  options.spare_servers = 0;
  options.min_servers = 2;
  SimWorld world(options);
  world.At("committed", 3, [&] {
    EXPECT_EQ(world.Scale(Drain(7)).status().code(), absl::StatusCode::kInvalidArgument);
    proto::ScaleRequest dry = Drain(2);
    dry.set_dry_run(true);
    EXPECT_TRUE(world.Scale(dry).ok());
    EXPECT_TRUE(world.Scale(Drain(2)).ok());
    EXPECT_THAT(Describe(world.Scale(Drain(2)).status()),
                HasSubstr("server 2 (host sim, pid 102) is leaving already"));
    EXPECT_THAT(Describe(world.Scale(Drain(1)).status()),
                HasSubstr("would have 1 servers, and cluster.min_servers is 2"));
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  Look(world);
  EXPECT_EQ(last.servers(), 2);
}

TEST_F(MoveTest, NoFewerThanMinServersAreWanted) {
  SimOptions options = Options();
  options.servers = 2;
  options.spare_servers = 1;
  options.min_servers = 2;
  options.checkpoint_every = 2;
  SimWorld world(options);
  world.At("committed", 6, [&] {
    EXPECT_TRUE(world.Scale(Drain(0)).ok()) << "the spare takes its place";
    world.KillServer(1);
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  Look(world);
  EXPECT_EQ(last.wanted(), 2);
}

// They come and go together, and no wish says so.
TEST_F(MoveTest, WithElasticThoseThatAreThereArePart) {
  SimOptions options = Options();
  options.steps = 400;
  options.elastic = true;
  SimWorld world(options);
  bool came = false;
  world.hook = [&, before = world.hook](const char* point, int index) {
    before(point, index);
    if (came || point != std::string_view("plan")) {
      return;
    }
    Look(world);
    if (last.servers() == 3) {
      came = true;
      EXPECT_THAT(Describe(world.Scale(Wish(2)).status()), HasSubstr("has cluster.elastic"));
      world.DrainServer(0);
      world.DrainServer(2);
    }
  };
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_TRUE(came);
  Look(world);
  EXPECT_EQ(last.servers(), 3);
  EXPECT_TRUE(Recorded(world, "\"servers\":3,\"servers_before\":1"));
  EXPECT_TRUE(Recorded(world, "\"servers\":1,\"servers_before\":3"));
}

// Its next life knows who is to go.
TEST_F(MoveTest, ADrainIsKeptOverARestartOfTheCoordinator) {
  SimOptions options = Options();
  options.servers = 3;
  options.spare_servers = 0;
  SimWorld world(options);
  world.At("work", 9, [&] {
    ASSERT_TRUE(world.Scale(Drain(0)).ok());
    world.loop.After(absl::ZeroDuration(), [&] {
      world.coordinator().process().End();
      world.loop.After(absl::Seconds(0.2), [&] { world.coordinator().Start(); });
    });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  Look(world);
  EXPECT_EQ(last.servers(), 2);
  EXPECT_TRUE(world.servers.server(0).hosted() == nullptr);
}

// At each command of a move.
class MovePointTest : public MoveTest, public ::testing::WithParamInterface<const char*> {
 protected:
  // Once, at that command after the wish for so many servers.
  static void AtPoint(SimWorld& world, int64_t servers, std::function<void(int)> action) {
    const auto state = std::make_shared<int>(0);  // 1: wished, 2: done
    world.At("committed", 2, [&world, state, servers] {
      EXPECT_TRUE(world.Scale(Wish(servers)).ok());
      *state = 1;
    });
    world.hook = [state, action, before = world.hook](const char* point, int index) {
      before(point, index);
      if (*state == 1 && point == std::string_view(GetParam())) {
        *state = 2;
        action(index);
      }
    };
  }
};

TEST_P(MovePointTest, ALostServerThatWasToComeCostsTheMoveAlone) {
  SimWorld world(Options());
  int killed = -1;
  AtPoint(world, 2, [&](int index) {
    killed = index;
    world.KillServer(1);
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(killed, 1);
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.done()->step(), 12);
}

// Servers may have begun by a map of which no worker has heard.
TEST_F(MoveTest, WorkersHearOfAMapFromTheNextLifeOfTheCoordinatorToo) {
  for (int delay = 0; delay < 32; ++delay) {
    SimOptions options = Options();
    options.servers = 2;
    SimWorld world(options);
    world.At("committed", 4, [&] { ASSERT_TRUE(world.Scale(Wish(1)).ok()); });
    world.At("fetch", 1, [&] {
      world.loop.After(delay * absl::Microseconds(250), [&] {
        world.coordinator().process().End();
        world.loop.After(absl::Seconds(0.2), [&] { world.coordinator().Start(); });
      });
    });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty()) << delay;
    EXPECT_TRUE(world.done().has_value()) << delay << ": " << world.failure();
  }
}

TEST_F(MoveTest, WhoseWritesAreRefusedSinceAnotherLeadsEndsWithoutAWord) {
  for (const bool moves : {false, true}) {
    SimOptions options = Options();
    options.jobs = moves ? 1 : 2;
    SimWorld world(options);
    std::unique_ptr<simulation::SimStore> of_another;
    const auto succeed = [&] { of_another = world.store->Succeed(); };
    world.At("committed", 4, [&] {
      if (moves) {
        ASSERT_TRUE(world.Scale(Wish(2)).ok());
      }
    });
    // Then a map is to be recorded, or the next job's run.
    moves ? world.At("fetch", 1, succeed) : world.At("committed", 12, succeed);
    world.Run();
    EXPECT_FALSE(world.coordinator().process().alive());
    for (const auto& job : world.command().jobs()) {
      EXPECT_FALSE(job.end.has_value() && job.end->has_failed()) << job.end->failed().message();
    }
  }
}

// After a map that is recorded so: by another version of the coordinator, or damaged.
void ExpectAnotherRunAfter(const SimOptions& options, void (*damage)(std::string&)) {
  SimWorld world(options);
  const auto run = [&] { return *world.store->Load()->jobs.front().run; };
  int64_t unreadable = 0;
  world.At("committed", 4, [&] {
    proto::SavedRun unread = run();
    unreadable = unread.run();
    damage(*unread.mutable_shard_map());
    const auto on_run = std::exchange(world.store->on_run, nullptr);
    EXPECT_TRUE(world.store->SaveRun(world.job_id(), unread, /*begins=*/false).ok());
    world.store->on_run = on_run;
    world.loop.After(absl::ZeroDuration(), [&] {
      world.coordinator().process().End();
      world.loop.After(absl::Seconds(0.2), [&] { world.coordinator().Start(); });
    });
  });
  world.Run();
  EXPECT_THAT(world.violations(), IsEmpty());
  EXPECT_GT(run().run(), unreadable);
  EXPECT_TRUE(world.done().has_value()) << world.failure();
}

TEST_F(MoveTest, AfterARunWhoseMapCannotBeReadAnotherBegins) {
  ExpectAnotherRunAfter(Options(), [](std::string& map) { map.pop_back(); });
  ExpectAnotherRunAfter(Options(), [](std::string& map) { map.back() = 100; });  // a server
}

TEST_P(MovePointTest, TheNextLifeOfTheCoordinatorGoesOnByOneMapOrTheOther) {
  SimWorld world(Options());
  bool ended = false;
  AtPoint(world, 3, [&](int) {
    world.loop.After(absl::ZeroDuration(), [&] {
      ended = true;
      world.coordinator().process().End();
      world.loop.After(absl::Seconds(0.2), [&] { world.coordinator().Start(); });
    });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_TRUE(ended);
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.done()->step(), 12);
}

TEST_P(MovePointTest, WhoCannotGoStaysOrWaitsForACheckpoint) {
  // Of one that is lost while it loads the job hears after a step.
  const bool loads = GetParam() == std::string_view("configure");
  for (const bool told : {false, true}) {
    SimOptions options = Options();
    options.spare_servers = 1;
    options.steps = loads ? 200 : 12;
    SimWorld world(options);
    AtPoint(world, 1, [&](int) { world.KillServer(1); });  // which was to have all
    world.At("committed", 2, [&] {
      if (told) {
        world.loop.After(absl::ZeroDuration(), [&] { world.DrainServer(0); });
      } else {
        EXPECT_TRUE(world.Scale(Drain(0)).ok());
      }
    });
    ASSERT_THAT(world.RunAndCheck(), IsEmpty());
    ASSERT_TRUE(world.done().has_value()) << world.failure();
    EXPECT_EQ(world.done()->step(), options.steps);
    EXPECT_TRUE(Recorded(world, "\"move_given_up\""));
    EXPECT_EQ(world.servers.process(0).life(), told ? 2 : 1);
  }
}

TEST_P(MovePointTest, AWishThatIsGivenUpIsSoForTheNextLifeToo) {
  SimOptions options = Options();
  options.steps = 60;
  SimWorld world(options);
  AtPoint(world, 2, [&](int) { world.KillServer(1); });
  world.At("committed", 30, [&] {
    world.loop.After(absl::ZeroDuration(), [&] {
      world.coordinator().process().End();
      world.loop.After(absl::Seconds(0.2), [&] { world.coordinator().Start(); });
    });
  });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  // One that is lost while it loads leaves its place to another.
  const bool is_given_up = GetParam() != std::string_view("configure");
  EXPECT_EQ(Recorded(world, "\"move_given_up\""), is_given_up);
  Look(world);
  EXPECT_EQ(last.wanted(), is_given_up ? 1 : 2);
  EXPECT_EQ(last.servers(), last.wanted());
}

// It is no free server any more, and not yet one of the job.
TEST_P(MovePointTest, WhoIsToComeIsNotDrainedMeanwhile) {
  SimWorld world(Options());
  absl::Status refused;
  AtPoint(world, 2, [&](int) { refused = world.Scale(Drain(1)).status(); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_THAT(Describe(refused), HasSubstr("is about to become part of a job: try again later"));
  Look(world);
  EXPECT_EQ(last.servers(), 2);
}

INSTANTIATE_TEST_SUITE_P(Points, MovePointTest, ::testing::Values("configure", "reserve", "fetch"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace shoal::server

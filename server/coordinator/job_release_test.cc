// A server that has no part in a job any more keeps nothing of it, also where the coordinator ends
// before it has said so: then its next life does. Under simulation.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/simulation/sim_world.h"

namespace shoal::server {
namespace {

using simulation::FaultKind;
using simulation::Faults;
using simulation::SimOptions;
using simulation::SimWorld;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

SimOptions Options() {
  return {.servers = 2, .workers = 2, .steps = 12, .exact = true, .stays = true};
}

void Scale(SimWorld& world, int64_t servers) {
  proto::ScaleRequest request;
  request.set_servers(servers);
  EXPECT_TRUE(world.Scale(request).ok());
}

void StartAgain(SimWorld& world) {
  world.coordinator().process().End();
  world.loop.After(absl::Seconds(0.2), [&] { world.coordinator().Start(); });
}

// By server.
std::vector<bool> WhoHoldsIt(SimWorld& world) {
  std::vector<bool> holds;
  for (int server = 0; server < world.servers.count(); ++server) {
    holds.push_back(world.servers.server(server).hosted() != nullptr);
  }
  return holds;
}

// What was sent last arrives.
void RunASecondMore(SimWorld& world) {
  const auto until = world.loop.now() + simulation::ToNanoseconds(absl::Seconds(1));
  while (world.loop.NextTime() <= until) {
    world.loop.RunNext();
  }
}

TEST(JobReleaseTest, WhoHasGivenItsPartitionsAway) {
  SimWorld world(Options(), Faults::FromList(1, {{FaultKind::kBuggify, "moved", 1, 0}}));
  world.At("committed", 4, [&] { Scale(world, 1); });
  std::vector<bool> holds;
  world.At("committed", 10, [&] { holds = WhoHoldsIt(world); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.coordinator().process().life(), 2);
  EXPECT_THAT(holds, ElementsAre(true, false));
}

TEST(JobReleaseTest, WhoWasToComeAndIsNotWantedAnyMore) {
  SimOptions options = Options();
  options.servers = 1;
  options.spare_servers = 1;
  SimWorld world(options);
  world.At("committed", 2, [&] { Scale(world, 2); });
  std::vector<bool> before;
  world.At("configure", 2, [&] {
    world.loop.After(absl::ZeroDuration(), [&] {
      before = WhoHoldsIt(world);
      Scale(world, 1);
      StartAgain(world);
    });
  });
  std::vector<bool> holds;
  world.At("committed", 10, [&] { holds = WhoHoldsIt(world); });
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  ASSERT_TRUE(world.done().has_value()) << world.failure();
  EXPECT_EQ(world.coordinator().process().life(), 2);
  EXPECT_THAT(before, ElementsAre(true, true));
  EXPECT_THAT(holds, ElementsAre(true, false));
}

// The coordinator's last writes of a job: that it tells of the end, and that it is over. A server
// has come in the last step, and never gets a part.
class JobEndTest : public ::testing::TestWithParam<int> {};

TEST_P(JobEndTest, AllLetGo) {
  SimOptions options = Options();
  options.spare_servers = 1;
  SimWorld world(options);
  world.At("committed", 22, [&] { Scale(world, 3); });
  int writes = 0;
  std::vector<bool> before;
  world.store->refuse = [&] {
    const simulation::SimProcess& process = world.coordinator().process();
    const proto::ListJobsReply jobs =
        process.alive() && process.life() == 1 ? world.core().List() : proto::ListJobsReply();
    const bool ends = jobs.jobs_size() > 0 && jobs.jobs(0).state() == "done";
    if (ends && ++writes == GetParam()) {
      before = WhoHoldsIt(world);
      StartAgain(world);
    }
    return absl::OkStatus();
  };
  ASSERT_THAT(world.RunAndCheck(), IsEmpty());
  EXPECT_EQ(writes, GetParam());
  EXPECT_EQ(world.coordinator().process().life(), 2);
  EXPECT_THAT(before, ElementsAre(true, true, true));
  RunASecondMore(world);
  EXPECT_THAT(WhoHoldsIt(world), ElementsAre(false, false, false));
}

INSTANTIATE_TEST_SUITE_P(Writes, JobEndTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace shoal::server

// The check refuses exactly what could not be executed: it agrees with the simulation on random
// damage.
#include <algorithm>

#include "core/base/random.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/offload.h"
#include "core/plan/schedule/schedule_check.h"
#include "core/plan/schedule/schedule_simulation.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const Schedule& schedule) {
  return std::string(CheckSchedule(schedule).message());
}

Schedule WithOffloads() {
  const Schedule schedule = UniformPipe(2, 2, 6);
  const ScheduleCosts costs(schedule.shape, {.offload = 0.1, .reload = 0.1});
  return AddOffloads(schedule, costs, FirstChunks(schedule.shape, 1)).value().schedule;
}

StageActions::iterator FirstOf(StageActions& actions, Operation operation) {
  return std::ranges::find(actions, operation, &Action::operation);
}

TEST(CheckSchedule, EveryActionIsNeeded) {
  const Schedule whole = WithOffloads();
  ASSERT_EQ(ErrorOf(whole), "");
  for (int stage = 0; stage < 2; ++stage) {
    for (size_t i = 0; i < whole.stages[stage].size(); ++i) {
      Schedule without = whole;
      without.stages[stage].erase(without.stages[stage].begin() + static_cast<ptrdiff_t>(i));
      EXPECT_NE(ErrorOf(without), "") << NameOf(whole.stages[stage][i]);
      Schedule twice = whole;
      twice.stages[stage].insert(twice.stages[stage].begin() + static_cast<ptrdiff_t>(i),
                                 whole.stages[stage][i]);
      EXPECT_NE(ErrorOf(twice), "") << NameOf(whole.stages[stage][i]);
    }
  }
}

TEST(CheckSchedule, NamesStageAndAction) {
  Schedule schedule = WithOffloads();
  schedule.stages[1].erase(FirstOf(schedule.stages[1], Operation::kReload));
  EXPECT_THAT(ErrorOf(schedule), HasSubstr("PO: stage 1 action"));
  schedule = GPipe(2, 1, 3);
  std::swap(*FirstOf(schedule.stages[1], Operation::kReceiveActivation),
            *(FirstOf(schedule.stages[1], Operation::kReceiveActivation) + 1));
  EXPECT_NE(ErrorOf(schedule), "");
  schedule = GPipe(2, 1, 3);
  schedule.stages.pop_back();
  EXPECT_THAT(ErrorOf(schedule), HasSubstr("lists for 1 stages where there are 2"));
  schedule = GPipe(2, 1, 3);
  schedule.shape.microbatches = 2;
  EXPECT_THAT(ErrorOf(schedule), HasSubstr("microbatch 2 is outside of"));
}

TEST(CheckSchedule, ProgressIsWhatTheSimulationFinds) {
  Random random(17);
  int stuck = 0;
  for (int round = 0; round < 400; ++round) {
    const auto stages = static_cast<int>(random.Between(2, 5));
    const auto microbatches = static_cast<int>(random.Between(2, 8));
    Schedule schedule = InterleavedOneForwardOneBackward(stages, 2, microbatches);
    // Moves compute actions of random stages; messages follow.
    for (StageActions& actions : schedule.stages) {
      std::erase_if(actions, [](const Action& action) { return !IsCompute(action.operation); });
      for (uint64_t moves = random.Below(3); moves > 0; --moves) {
        std::swap(actions[random.Below(actions.size())], actions[random.Below(actions.size())]);
      }
    }
    AddMessages(schedule);
    if (!CheckStages(schedule).ok() || !CheckMessages(schedule).ok()) {
      continue;
    }
    const bool progresses = CheckProgress(schedule).ok();
    const auto times = SimulateSchedule(schedule, ScheduleCosts(schedule.shape, {}));
    EXPECT_EQ(progresses, times.ok());
    stuck += progresses ? 0 : 1;
  }
  EXPECT_GT(stuck, 10);
}

}  // namespace
}  // namespace shoal::plan

#include "core/plan/step/draw_queue.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <tuple>

#include "core/base/status.h"
#include "core/plan/step/lengths.h"
#include "core/plan/step/prediction.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

constexpr CostModel kCost = {.per_token = 42170, .per_squared_token = 1};

StepPlan LongAlignPlan(Random& random, int workers, int64_t samples_each, Assignment assignment,
                       const std::vector<double>& speeds = {}) {
  const LengthDistribution lengths = *ParseLengths("longalign");
  std::vector<SampleLength> samples;
  for (int64_t i = 0; i < workers * samples_each; ++i) {
    const int64_t tokens = DrawLength(lengths, random);
    samples.push_back({.sample = i, .tokens = tokens, .targets = tokens});
  }
  return *PlanStep(
      samples,
      {.workers = workers, .microbatch_tokens = 65536, .assignment = assignment, .speeds = speeds},
      kCost);
}

double Work(const StepPlan& plan) {
  double work = 0;
  for (const auto& worker : plan.workers) {
    for (const Microbatch& microbatch : worker) {
      work += microbatch.cost;
    }
  }
  return work;
}

// Workers that run what they draw.
struct World {
  std::vector<double> pace;  // cost per second, by worker
  double jitter = 0;         // each pack takes up to this fraction longer or shorter
  double draws_at = 0.5;     // the fraction of a pack after which the next one is drawn
  double misjudged = 0;      // how wrong a worker may be about the rest of its pack
  double repeats = 0;        // how often a draw is made twice
};

// Runs a step; returns when the last worker is done.
double RunStep(DrawQueue& queue, const World& world, Random& random) {
  struct Event {
    double time;
    int worker;
    bool idle;       // it has nothing to run
    double ends;     // of the pack it runs
    int64_t number;  // of the draw to make
    bool operator>(const Event& other) const {
      return std::tie(time, worker) > std::tie(other.time, other.worker);
    }
  };
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  double end = 0;
  const auto run = [&](int worker, double from, const Microbatch& pack, int64_t next) {
    const double seconds = pack.cost / world.pace[static_cast<size_t>(worker)] *
                           (1 + world.jitter * (2 * random.Uniform() - 1));
    end = std::max(end, from + seconds);
    events.push({from + world.draws_at * seconds, worker, false, from + seconds, next});
  };
  queue.Start(0);
  for (int worker = 0; worker < static_cast<int>(world.pace.size()); ++worker) {
    const auto given = queue.Given(worker);
    if (given.empty()) {
      events.push({0, worker, true, 0, 1});
    } else {
      run(worker, 0, *given.front(), 1);
    }
  }
  while (!events.empty()) {
    const Event event = events.top();
    events.pop();
    const double ahead =
        (event.ends - event.time) * (1 + world.misjudged * (2 * random.Uniform() - 1));
    const auto pack = queue.Draw(event.worker, event.number, event.time, ahead);
    EXPECT_TRUE(pack.ok()) << Describe(pack.status());
    if (*pack != nullptr) {
      if (random.Uniform() < world.repeats) {
        EXPECT_EQ(*queue.Draw(event.worker, event.number, event.time, ahead), *pack);
      }
      run(event.worker, event.ends, **pack, event.number + 1);
    } else if (!event.idle) {
      events.push({event.ends, event.worker, true, event.ends, event.number});
    }
  }
  return end;
}

void ExpectEachPackOnce(const DrawQueue& queue, const StepPlan& plan) {
  std::multiset<std::vector<int64_t>> planned;
  std::multiset<std::vector<int64_t>> given;
  for (int worker = 0; worker < static_cast<int>(plan.workers.size()); ++worker) {
    EXPECT_EQ(queue.Left(worker), 0);
    for (const Microbatch& microbatch : plan.workers[static_cast<size_t>(worker)]) {
      if (!microbatch.empty()) {
        planned.insert(microbatch.samples);
      }
    }
    for (const Microbatch* microbatch : queue.Given(worker)) {
      given.insert(microbatch->samples);
    }
  }
  EXPECT_EQ(planned, given);
}

TEST(DrawQueue, IsNeverSlowerThanThePlanWhereSpeedsAreKnown) {
  Random random(1);
  for (int round = 0; round < 300; ++round) {
    const auto workers = static_cast<int>(random.Between(1, 12));
    std::vector<double> speeds(static_cast<size_t>(workers), 1.0);
    for (double& speed : speeds) {
      speed = round % 2 == 0 ? 1.0 : 0.3 + random.Uniform();
    }
    const Assignment assignment = round % 3 == 0 ? Assignment::kLbMini : Assignment::kDynamic;
    const StepPlan plan = LongAlignPlan(random, workers, random.Between(1, 16), assignment, speeds);
    const double planned = Predict(plan, Synchronization::kStep, speeds).step_time;
    const double cost_per_second = 1e9;
    DrawQueue queue(plan, speeds, cost_per_second);
    World world{.draws_at = 0.25 * static_cast<double>(random.Between(0, 4)), .repeats = 0.1};
    for (const double speed : speeds) {
      world.pace.push_back(speed * cost_per_second);
    }
    EXPECT_LE(RunStep(queue, world, random), planned / cost_per_second * (1 + 1e-6));
    ExpectEachPackOnce(queue, plan);
  }
}

TEST(DrawQueue, MakesUpForADeviceThatIsSlowWithoutThePlanKnowing) {
  Random random(2);
  for (const double known : {0.0, 1e9}) {
    double time = 0;
    double ideal = 0;
    for (int round = 0; round < 50; ++round) {
      const StepPlan plan = LongAlignPlan(random, 8, 32, Assignment::kDynamic);
      DrawQueue queue(plan, {}, known);
      World world{.pace = std::vector<double>(8, 1e9)};
      world.pace[static_cast<size_t>(random.Below(8))] = 0.5e9;
      time += RunStep(queue, world, random);
      ideal += Work(plan) / 7.5e9;
      ExpectEachPackOnce(queue, plan);
    }
    EXPECT_LE(time, 1.05 * ideal) << known;
  }
}

TEST(DrawQueue, AdaptsToSpeedsThatNobodyKnows) {
  Random random(3);
  double drawn = 0;
  double fixed = 0;
  for (int round = 0; round < 200; ++round) {
    const auto workers = static_cast<int>(random.Between(2, 12));
    const StepPlan plan =
        LongAlignPlan(random, workers, random.Between(2, 16), Assignment::kDynamic);
    World world{.jitter = 0.1,
                .draws_at = 0.25 * static_cast<double>(random.Between(0, 4)),
                .misjudged = 0.2};
    for (int worker = 0; worker < workers; ++worker) {
      world.pace.push_back(1e9 * (0.4 + random.Uniform()));
    }
    DrawQueue queue(plan, {}, round % 2 == 0 ? 0 : 1e9);
    drawn += RunStep(queue, world, random);
    fixed += Predict(plan, Synchronization::kStep, world.pace).step_time;
    ExpectEachPackOnce(queue, plan);
  }
  EXPECT_LT(drawn, 0.8 * fixed);
}

TEST(DrawQueue, JitterCostsNoMoreThanItDoesWithoutDrawing) {
  Random random(4);
  double drawn = 0;
  double planned = 0;
  for (int round = 0; round < 200; ++round) {
    const StepPlan plan = LongAlignPlan(random, 8, 8, Assignment::kDynamic);
    DrawQueue queue(plan, {}, 1e9);
    const World world{.pace = std::vector<double>(8, 1e9), .jitter = 0.1, .misjudged = 0.1};
    drawn += RunStep(queue, world, random);
    // The same with each worker's packs fixed.
    double longest = 0;
    for (const auto& worker : plan.workers) {
      double seconds = 0;
      for (const Microbatch& microbatch : worker) {
        seconds += microbatch.cost / 1e9 * (1 + world.jitter * (2 * random.Uniform() - 1));
      }
      longest = std::max(longest, seconds);
    }
    planned += longest;
  }
  EXPECT_LE(drawn, planned * 1.005);
}

// Draws in any order, at any time, with any claim.
TEST(DrawQueue, HandsOutEachPackOnceWhateverHappens) {
  Random random(5);
  for (int round = 0; round < 300; ++round) {
    const auto workers = static_cast<int>(random.Between(1, 9));
    StepPlan plan = LongAlignPlan(random, workers, random.Between(0, 6), Assignment::kLbMini);
    // Some have nothing at first, some more than their share, some empty microbatches.
    for (auto& worker : plan.workers) {
      if (random.Below(3) == 0) {
        auto& other = plan.workers[random.Below(plan.workers.size())];
        if (&other != &worker) {
          other.insert(other.end(), worker.begin(), worker.end());
          worker.clear();
        }
        worker.resize(worker.size() + random.Below(2));
      }
    }
    DrawQueue queue(plan, {}, random.Below(2) == 0 ? 0 : 1e9);
    double now = 100;
    queue.Start(now);
    std::vector<int64_t> numbers(static_cast<size_t>(workers), 1);
    std::map<std::pair<int, int64_t>, const Microbatch*> answers;
    int working = workers;
    while (working > 0) {
      now += random.Below(2) == 0 ? 0 : random.Uniform();
      const auto worker = static_cast<int>(random.Below(static_cast<uint64_t>(workers)));
      int64_t& number = numbers[static_cast<size_t>(worker)];
      if (number < 0) {
        continue;
      }
      const int64_t repeated = random.Between(1, number);
      const auto answer = queue.Draw(worker, repeated, now, 3 * random.Normal());
      ASSERT_TRUE(answer.ok());
      if (repeated < number) {
        EXPECT_EQ(*answer, (answers[{worker, repeated}]));
      } else if (*answer != nullptr) {
        answers[{worker, number++}] = *answer;
      } else {
        EXPECT_EQ(queue.Left(worker), 0);
        number = -1;
        --working;
      }
    }
    ExpectEachPackOnce(queue, plan);
  }
}

TEST(DrawQueue, RefusesNumbersOutOfTurn) {
  StepPlan plan;
  plan.workers = {
      {{.samples = {1}, .tokens = 5, .cost = 5}, {.samples = {2}, .tokens = 3, .cost = 3}}, {}};
  DrawQueue queue(plan, {}, 1);
  queue.Start(0);
  EXPECT_THAT(queue.Given(0), testing::ElementsAre(testing::Pointee(plan.workers[0][0])));
  EXPECT_THAT(queue.Given(1), testing::IsEmpty());
  for (const int64_t number : {-1, 0, 2}) {
    const auto refused = queue.Draw(0, number, 0, 5);
    ASSERT_TRUE(absl::IsInvalidArgument(refused.status())) << number;
    EXPECT_THAT(std::string(Message(refused.status())), testing::HasSubstr("worker 0"));
  }
  // Worker 1 is free at once, and worker 0 would reach its second pack at 5.
  EXPECT_EQ((*queue.Draw(1, 1, 0, 0))->samples, std::vector<int64_t>({2}));
  EXPECT_EQ(*queue.Draw(0, 1, 0, 5), nullptr);
  EXPECT_EQ(*queue.Draw(1, 2, 0, 3), nullptr);
}

TEST(DrawQueue, AWorkerThatIsStuckIsRelievedAndOneThatIsNearlyDoneIsNot) {
  StepPlan plan;
  for (int worker = 0; worker < 2; ++worker) {
    for (int64_t i = 0; i < 4; ++i) {
      plan.workers.resize(2);
      plan.workers[static_cast<size_t>(worker)].push_back(
          {.samples = {10 * worker + i}, .tokens = 1, .cost = 1});
    }
  }
  DrawQueue queue(plan, {}, 1);
  queue.Start(0);
  // Worker 0 keeps to the plan; worker 1 is never heard of.
  int64_t number = 1;
  for (; number <= 3; ++number) {
    ASSERT_NE(*queue.Draw(0, number, static_cast<double>(number), 0), nullptr);
  }
  for (; number <= 6; ++number) {
    const Microbatch* taken = *queue.Draw(0, number, static_cast<double>(number), 0);
    ASSERT_NE(taken, nullptr);
    EXPECT_GE(taken->samples[0], 11);
  }
  EXPECT_EQ(*queue.Draw(0, 7, 7, 0), nullptr);
  // Nobody relieves a worker that would finish as soon by itself.
  DrawQueue even(plan, {}, 1);
  even.Start(0);
  for (int64_t draw = 1; draw <= 3; ++draw) {
    for (const int worker : {0, 1}) {
      const Microbatch* pack = *even.Draw(worker, draw, static_cast<double>(draw) - 0.5, 0.5);
      EXPECT_EQ(pack->samples[0] / 10, worker);
    }
  }
  EXPECT_EQ(*even.Draw(0, 4, 3.5, 0.5), nullptr);
  EXPECT_EQ(*even.Draw(1, 4, 3.5, 0.5), nullptr);
}

TEST(DrawQueue, WhatALostWorkerHadGoesToWhoeverEndsItSoonestAndLeaversResume) {
  StepPlan plan;
  plan.workers.resize(3);
  for (int64_t number = 0; number < 9; ++number) {
    plan.workers[static_cast<size_t>(number / 3)].push_back(
        {.samples = {number}, .tokens = 1, .cost = 1, .number = number});
  }
  DrawQueue queue(plan, {}, 1);
  queue.Start(0);
  std::multiset<int64_t> run = {0, 3};  // the first packs, without that of the lost worker
  const auto draw = [&](int worker, int64_t number, double now) {
    const Microbatch* pack = *queue.Draw(worker, number, now, 0);
    if (pack != nullptr) {
      run.insert(pack->number);
    }
    return pack != nullptr;
  };
  for (int64_t number = 1; number <= 2; ++number) {
    EXPECT_TRUE(draw(0, number, static_cast<double>(number)));
    EXPECT_TRUE(draw(1, number, static_cast<double>(number)));
  }
  for (int64_t number = 3; queue.Left(0) == 0 && draw(0, number, 3); ++number) {
  }
  queue.Retire(0);
  ASSERT_TRUE(queue.Draw(2, 1, 1, 0).ok());  // has packs 6 and 7 in hand, and neither is done
  std::vector<int64_t> undone;
  for (const Microbatch* pack : queue.Given(2)) {
    undone.push_back(pack->number);
  }
  queue.Lose(2, undone, 3);
  EXPECT_EQ(queue.Left(2), 0);
  EXPECT_GT(queue.Left(0), 0) << "who has reported is to take a part";
  queue.Resume(0, 3);
  for (const Microbatch* first : queue.Given(0)) {
    run.insert(first->number);
  }
  for (int worker = 0; worker < 2; ++worker) {
    for (int64_t number = worker == 0 ? 1 : 3; draw(worker, number, 4); ++number) {
    }
  }
  EXPECT_THAT(run, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
}

}  // namespace
}  // namespace shoal::plan

#include "core/plan/schedule/builders/copy_plan.h"

#include <algorithm>
#include <utility>

#include "core/base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::plan {
namespace {

TEST(PlanCopies, OffloadsAtOnceAndReloadsAsLateAsItMay) {
  const std::vector<CopyJob> jobs = {{.ready = 1, .due = 20, .offload = 2, .reload = 3},
                                     {.ready = 2, .due = 19, .offload = 2, .reload = 3}};
  const auto copies = PlanCopies(jobs, {});
  EXPECT_EQ(copies[0].offload_begin, 1);
  EXPECT_EQ(copies[1].offload_begin, 3);
  EXPECT_EQ(copies[1].reload_begin, 14);
  EXPECT_EQ(copies[0].reload_begin, 17);
}

TEST(PlanCopies, AnOffloadThatDoesNotFitBeforeAReloadLetsItGoFirst) {
  const std::vector<CopyJob> jobs = {{.ready = 0, .due = 10, .offload = 2, .reload = 2},
                                     {.ready = 7, .due = 30, .offload = 2, .reload = 2}};
  // 7 to 9 would overlap the reload from 8 on, which therefore moves earlier.
  const auto copies = PlanCopies(jobs, {});
  EXPECT_EQ(copies[0].reload_begin, 5);
  EXPECT_EQ(copies[1].offload_begin, 7);
  // With two streams neither waits for the other.
  const auto duplex = PlanCopies(jobs, {.duplex = true});
  EXPECT_EQ(duplex[0].reload_begin, 8);
  EXPECT_EQ(duplex[1].offload_begin, 7);
}

TEST(PlanCopies, WhatCannotBeBackInTimeStays) {
  const std::vector<CopyJob> jobs = {{.ready = 0, .due = 100, .offload = 9, .reload = 1},
                                     {.ready = 1, .due = 12, .offload = 4, .reload = 1}};
  const auto copies = PlanCopies(jobs, {});
  EXPECT_TRUE(copies[0].moved);
  EXPECT_FALSE(copies[1].moved);
}

using Interval = std::pair<double, double>;

void ExpectOneAtATime(std::vector<Interval> intervals) {
  std::ranges::sort(intervals);
  for (size_t i = 1; i < intervals.size(); ++i) {
    EXPECT_LE(intervals[i - 1].second, intervals[i].first + 1e-6);
  }
}

TEST(PlanCopies, KeepsToTheStreamsWhateverTheJobs) {
  Random random(21);
  for (int round = 0; round < 300; ++round) {
    const CopyStreams streams = {.duplex = random.Below(2) == 0, .paired = random.Below(2) == 0};
    std::vector<CopyJob> jobs(random.Below(60));
    const double load = 4 * random.Uniform();
    for (CopyJob& job : jobs) {
      job = {.device = streams.paired ? static_cast<int>(random.Below(2)) : 0,
             .ready = 100 * random.Uniform(),
             .offload = load * random.Uniform(),
             .reload = load * random.Uniform()};
      job.due = job.ready + 50 * random.Uniform();
    }
    const auto copies = PlanCopies(jobs, streams);
    std::vector<Interval> streams_of[2];
    std::vector<Interval> offloads;
    std::vector<Interval> reloads;
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (!copies[i].moved) {
        continue;
      }
      const Interval offload = {copies[i].offload_begin, copies[i].offload_begin + jobs[i].offload};
      const Interval reload = {copies[i].reload_begin, copies[i].reload_begin + jobs[i].reload};
      EXPECT_GE(offload.first, jobs[i].ready);
      EXPECT_LE(offload.second, reload.first + 1e-6);
      EXPECT_LE(reload.second, jobs[i].due + 1e-6);
      offloads.push_back(offload);
      reloads.push_back(reload);
      streams_of[jobs[i].device].push_back(offload);
      streams_of[jobs[i].device].push_back(reload);
    }
    ExpectOneAtATime(offloads);
    ExpectOneAtATime(reloads);
    if (!streams.duplex) {
      ExpectOneAtATime(streams_of[0]);
      ExpectOneAtATime(streams_of[1]);
    }
  }
}

}  // namespace
}  // namespace shoal::plan

// Compares the use-by-use walk with closed forms for the longest path through transfers and
// compute, in the cases that have one.
#include <algorithm>
#include <numeric>

#include "core/base/random.h"
#include "core/sim/layer_step.h"
#include "core/sim/testing/clusters.h"
#include "core/sim/worker_step.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shoal::sim {
namespace {

using plan::PushPolicy;
using plan::Residency;

constexpr plan::WorkerPolicy kKeepAndPushOnce = {Residency::kStep, PushPolicy::kStep};

struct Case {
  UsePattern pattern;
  TransferTimes transfers;
  std::vector<MicrobatchTime> microbatches;

  // Seconds of compute of a use.
  double Compute(size_t microbatch, size_t use) const {
    const Use& at = pattern.uses[use];
    return at.end.Of(microbatches[microbatch]) - at.begin.Of(microbatches[microbatch]);
  }
};

MicrobatchTime RandomTime(const UsePattern& pattern, Random& random) {
  MicrobatchTime time{.block = random.Uniform(), .head = random.Uniform()};
  time.total = 3 * static_cast<double>(pattern.layers) * time.block + time.head;
  return time;
}

// A small model; gets and pushes take about as long as compute.
Case RandomCase(Random& random, const plan::WorkerPolicy& policy, int64_t prefetch) {
  plan::Job job;
  job.train.prefetch_units = prefetch;
  plan::ModelSpec spec = *plan::NamedShape("tiny");
  spec.layers = random.Between(1, 5);
  spec.tied_embeddings = random.Below(2) == 0;
  Case result{.pattern = BuildUsePattern(spec, job, policy)};
  result.transfers = TransferTimesOf(result.pattern, {.one_link = false});
  const auto redraw = [&](std::vector<double>& times) {
    for (double& time : times) {
      time = time < 0 ? time : random.Uniform();
    }
  };
  redraw(result.transfers.first_get);
  redraw(result.transfers.later_get);
  for (int64_t m = random.Between(1, 6); m > 0; --m) {
    result.microbatches.push_back(RandomTime(result.pattern, random));
  }
  return result;
}

WorkerTimes RunWorker(const Case& given) {
  WorkerStep worker(given.pattern, given.transfers, 0, nullptr);
  for (size_t m = 0; m < given.microbatches.size(); ++m) {
    worker.Run(given.microbatches[m], m + 1 == given.microbatches.size());
  }
  return worker.Finish();
}

double AllCompute(const Case& given) {
  return std::accumulate(given.microbatches.begin(), given.microbatches.end(), 0.0,
                         [](double sum, const MicrobatchTime& time) { return sum + time.total; });
}

// Nothing is fetched ahead: every fetch is waited for in full.
TEST(CriticalPath, WithoutPrefetchGetsAndComputeAddUp) {
  Random random(1);
  for (int i = 0; i < 100; ++i) {
    Case given = RandomCase(random, kFetchEachUse, 0);
    given.transfers.latency = 0.125;
    double waits = 0;
    for (size_t m = 0; m < given.microbatches.size(); ++m) {
      for (const double get : m == 0 ? given.transfers.first_get : given.transfers.later_get) {
        waits += get < 0 ? 0 : get + given.transfers.latency;
      }
    }
    const WorkerTimes times = RunWorker(given);
    EXPECT_NEAR(times.get_wait, waits, 1e-9);
    // The last pushes are acknowledged one latency after the last compute.
    EXPECT_NEAR(times.finish, AllCompute(given) + waits + 0.125, 1e-9);
  }
}

// Everything is fetched from the start: the longest path takes the gets up to some use and the
// compute from there on.
TEST(CriticalPath, WithEverythingStartedAtOnceGetsRunAhead) {
  Random random(2);
  for (int i = 0; i < 100; ++i) {
    const Case given = RandomCase(random, kKeepAndPushOnce, 2);
    double before = 0;  // gets up to this use
    double compute = 0;
    double longest = AllCompute(given);
    for (size_t k = 0; k < given.pattern.uses.size(); ++k) {
      if (given.transfers.first_get[k] >= 0) {
        before += given.transfers.first_get[k];
        longest = std::max(longest, before + AllCompute(given) - compute);
      }
      compute += given.Compute(0, k);
    }
    EXPECT_NEAR(RunWorker(given).finish, longest, 1e-9);
  }
}

// Pushed once, in the last microbatch, each from its own buffer: the compute up to some use and the
// pushes from there on.
TEST(CriticalPath, PushesRunBehind) {
  Random random(3);
  for (int i = 0; i < 100; ++i) {
    Case given = RandomCase(random, kKeepAndPushOnce, 2);
    std::fill(given.transfers.first_get.begin(), given.transfers.first_get.end(), -1.0);
    for (std::vector<double>& pushes : given.transfers.push) {
      for (double& push : pushes) {
        push = random.Uniform();
      }
    }
    const MicrobatchTime& last = given.microbatches.back();
    const double before_last = AllCompute(given) - last.total;
    double longest = AllCompute(given);
    double rest = 0;  // pushes from this use on
    for (size_t k = given.pattern.uses.size(); k-- > 0;) {
      for (const double push : given.transfers.push[k]) {
        rest += push;
      }
      longest = std::max(longest, before_last + given.pattern.uses[k].end.Of(last) + rest);
    }
    const WorkerTimes times = RunWorker(given);
    EXPECT_NEAR(times.finish, longest, 1e-9);
    EXPECT_NEAR(times.push_wait, longest - AllCompute(given), 1e-9);

    // With fewer buffers it takes longer, but never longer than one thing after another.
    given.pattern.push_per_step = false;
    const double finish = RunWorker(given).finish;
    EXPECT_GE(finish, longest - 1e-9);
    EXPECT_LE(finish,
              AllCompute(given) + static_cast<double>(given.microbatches.size()) * rest + 1e-9);
  }
}

// Collectives, nothing fetched ahead: each use that fetches takes its get and the slowest worker's
// compute up to the next one.
TEST(CriticalPath, CollectivesTakeTheSlowestAtEveryGet) {
  Random random(4);
  for (int i = 0; i < 100; ++i) {
    const Case given = RandomCase(random, kFetchEachUse, 0);
    constexpr size_t kWorkers = 5;
    std::vector<std::vector<MicrobatchTime>> microbatches;
    double expected = 0;
    for (size_t m = 0; m < given.microbatches.size(); ++m) {
      std::vector<MicrobatchTime>& times = microbatches.emplace_back();
      for (size_t w = 0; w < kWorkers; ++w) {
        times.push_back(w == m ? MicrobatchTime() : RandomTime(given.pattern, random));
      }
      const auto& gets = m == 0 ? given.transfers.first_get : given.transfers.later_get;
      for (size_t k = 0; k < given.pattern.uses.size(); ++k) {
        ASSERT_GE(gets[k], 0);
        double slowest = 0;
        for (const MicrobatchTime& time : times) {
          const Use& use = given.pattern.uses[k];
          slowest = std::max(slowest, use.end.Of(time) - use.begin.Of(time));
        }
        expected += gets[k] + slowest;
      }
    }
    const LayerStepResult result =
        RunLayerStep(given.pattern, given.transfers, microbatches, nullptr);
    double finish = 0;
    for (const WorkerTimes& worker : result.workers) {
      finish = std::max(finish, worker.finish);
    }
    EXPECT_NEAR(finish, expected, 1e-9);
    const auto uses = static_cast<int64_t>(given.pattern.uses.size());
    EXPECT_EQ(result.barriers,
              static_cast<int64_t>(microbatches.size()) * (uses + given.pattern.layers + 2));
  }
}

}  // namespace
}  // namespace shoal::sim

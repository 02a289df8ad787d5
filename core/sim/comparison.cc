#include "core/sim/comparison.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/check.h"
#include "core/base/random.h"
#include "core/base/status.h"

namespace shoal::sim {

using plan::Assignment;
using plan::Synchronization;

Minibatches DrawnMinibatches(const plan::LengthDistribution& lengths, int64_t samples,
                             uint64_t seed) {
  return [=](int64_t step) -> absl::StatusOr<std::vector<plan::SampleLength>> {
    Random random(seed, static_cast<uint64_t>(step));
    std::vector<plan::SampleLength> minibatch;
    for (int64_t i = 0; i < samples; ++i) {
      const int64_t tokens = plan::DrawLength(lengths, random);
      minibatch.push_back({.sample = i, .tokens = tokens, .targets = tokens});
    }
    return minibatch;
  };
}

std::vector<Choice> AllChoices() {
  return {{Synchronization::kLayer, Assignment::kNative},
          {Synchronization::kLayer, Assignment::kLocalSort},
          kBaseline,
          {Synchronization::kStep, Assignment::kNative},
          {Synchronization::kStep, Assignment::kLocalSort},
          {Synchronization::kStep, Assignment::kLbMicro},
          {Synchronization::kStep, Assignment::kLbMini},
          {Synchronization::kStep, Assignment::kSpeedWeighted},
          {Synchronization::kStep, Assignment::kDynamic}};
}

absl::StatusOr<ChoiceSummary> Summarize(const Simulator& simulator, const Choice& choice,
                                        const Minibatches& minibatches, int64_t steps) {
  SHOAL_CHECK(steps > 0);
  ChoiceSummary summary{.choice = choice, .steps = steps};
  std::vector<double> seconds;
  WorkerTimes sum;
  double worker_seconds = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<plan::SampleLength> samples, minibatches(step));
    SHOAL_ASSIGN_OR_RETURN(const StepResult result,
                           simulator.Run(samples, choice.assignment, choice.synchronization));
    seconds.push_back(result.seconds);
    worker_seconds += result.seconds * static_cast<double>(result.workers.size());
    for (const WorkerTimes& worker : result.workers) {
      sum.compute += worker.compute;
      sum.get_wait += worker.get_wait;
      sum.push_wait += worker.push_wait;
      sum.layer_wait += worker.layer_wait;
      sum.finish += worker.finish;
    }
    summary.bytes += result.bytes;
    summary.microbatches += result.microbatches;
    summary.barriers += result.barriers;
  }
  summary.mean_seconds = summary.PerStep(std::accumulate(seconds.begin(), seconds.end(), 0.0));
  std::sort(seconds.begin(), seconds.end());
  const auto rank = static_cast<size_t>(std::ceil(0.95 * static_cast<double>(seconds.size())));
  summary.p95_seconds = seconds[rank - 1];
  if (worker_seconds > 0) {
    summary.idle_share = 1 - sum.compute / worker_seconds;
    summary.get_wait_share = sum.get_wait / worker_seconds;
    summary.push_wait_share = sum.push_wait / worker_seconds;
    summary.layer_wait_share = sum.layer_wait / worker_seconds;
    summary.step_wait_share = 1 - sum.finish / worker_seconds;
  }
  return summary;
}

double SpeedUp(const ChoiceSummary& choice, const ChoiceSummary& baseline) {
  return baseline.mean_seconds / choice.mean_seconds;
}

}  // namespace shoal::sim

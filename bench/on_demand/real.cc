#include "bench/on_demand/real.h"

#include <algorithm>

#include "bench/on_demand/emulated.h"
#include "core/base/check.h"
#include "core/base/status.h"

namespace shoal::bench {
namespace {

using plan::Assignment;
using plan::Synchronization;

constexpr int64_t kWarmupSteps = 2;
constexpr sim::Choice kChoices[] = {{Synchronization::kLayer, Assignment::kLbMicro},
                                    {Synchronization::kLayer, Assignment::kLbMini},
                                    {Synchronization::kStep, Assignment::kLbMini},
                                    {Synchronization::kStep, Assignment::kDynamic}};

// All choices fetch weights for each use and push gradients for each microbatch.
plan::Job JobOf(const std::string& test_data, const std::string& tokens, int64_t minibatch_samples,
                const sim::Choice& choice, int64_t steps) {
  plan::Job job;
  job.model = test_data + "/stories260k";
  job.data.train = tokens;
  job.data.max_sequence_tokens = 512;
  job.data.microbatch_tokens = 2048;
  job.plan.assignment = choice.assignment;
  job.train.steps = steps;
  job.train.minibatch_samples = minibatch_samples;
  job.train.compute = plan::ComputeType::kFp32;
  job.train.synchronization = choice.synchronization;
  job.train.residency = plan::Residency::kLayer;
  job.train.push = plan::PushPolicy::kMicrobatch;
  job.cluster.servers = 2;
  job.cluster.workers = 2;
  return job;
}

// By choice, then step, then round.
using Rounds = std::vector<std::vector<std::vector<MeasuredStep>>>;

RealRun Summarised(int64_t minibatch_samples, const Rounds& choices) {
  RealRun run{.minibatch_samples = minibatch_samples};
  for (size_t c = 0; c < choices.size(); ++c) {
    std::vector<double> seconds;
    std::vector<double> idle;
    for (const auto& rounds : choices[c]) {
      std::vector<double> step_seconds;
      std::vector<double> step_idle;
      for (const MeasuredStep& step : rounds) {
        step_seconds.push_back(step.seconds);
        step_idle.push_back(step.idle_share);
      }
      seconds.push_back(Median(std::move(step_seconds)));
      idle.push_back(Median(std::move(step_idle)));
    }
    run.methods.push_back(
        {.choice = kChoices[c], .seconds = Mean(seconds), .idle_share = Mean(idle)});
  }
  return run;
}

}  // namespace

const RealMethod& RealRun::Best(Synchronization synchronization) const {
  const RealMethod* best = nullptr;
  for (const RealMethod& method : methods) {
    if (method.choice.synchronization == synchronization &&
        (best == nullptr || method.seconds < best->seconds)) {
      best = &method;
    }
  }
  SHOAL_CHECK(best != nullptr);
  return *best;
}

absl::StatusOr<std::vector<RealRun>> RunReal(const std::string& test_data,
                                             const RealOptions& options,
                                             const TrainRunner& runner) {
  const std::string tokens = runner.folder() + "/chats.tokens";
  SHOAL_RETURN_IF_ERROR(runner
                            .Run({"data", "prepare", test_data + "/gsm8k-chats/train.jsonl",
                                  "--model", test_data + "/stories260k", "--max-sequence-tokens",
                                  "512", "--oversize", "truncate", "--output", tokens},
                                 absl::Minutes(2))
                            .status());
  std::vector<RealRun> runs;
  for (const int64_t samples : options.minibatch_samples) {
    Rounds measured(std::size(kChoices), std::vector<std::vector<MeasuredStep>>(
                                             static_cast<size_t>(options.steps - kWarmupSteps)));
    for (int64_t round = 0; round < options.rounds; ++round) {
      for (size_t c = 0; c < std::size(kChoices); ++c) {
        SHOAL_ASSIGN_OR_RETURN(
            const std::vector<MeasuredStep> steps,
            runner.Train(JobOf(test_data, tokens, samples, kChoices[c], options.steps),
                         absl::Minutes(3)));
        for (size_t i = kWarmupSteps; i < steps.size(); ++i) {
          measured[c][i - kWarmupSteps].push_back(steps[i]);
        }
      }
    }
    runs.push_back(Summarised(samples, measured));
  }
  return runs;
}

}  // namespace shoal::bench

// How long planning takes: it must stay far below a step's time.
#include <functional>
#include <queue>
#include <utility>

#include "benchmark/benchmark.h"
#include "core/plan/step/balanced_split.h"
#include "core/plan/step/draw_queue.h"
#include "core/plan/step/lengths.h"
#include "core/plan/step/step_plan.h"

namespace shoal::plan {
namespace {

std::vector<SampleLength> LongAlign(int64_t count) {
  const LengthDistribution lengths = *ParseLengths("longalign");
  Random random(1);
  std::vector<SampleLength> samples;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t tokens = DrawLength(lengths, random);
    samples.push_back({.sample = i, .tokens = tokens, .targets = tokens / 2});
  }
  return samples;
}

// Arguments: samples, workers, assignment.
void BenchPlanStep(benchmark::State& state) {
  const auto samples = LongAlign(state.range(0));
  const CostModel cost = FlopCost(*NamedShape("1.5b"));
  StepPlanOptions options{.workers = static_cast<int>(state.range(1)),
                          .microbatch_tokens = 65536,
                          .assignment = static_cast<Assignment>(state.range(2))};
  for (int worker = 0; worker < options.workers; ++worker) {
    options.speeds.push_back(worker % 7 == 3 ? 0.5 : 1.0);
  }
  state.SetLabel(std::string(Name(options.assignment)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(PlanStep(samples, options, cost));
  }
}
BENCHMARK(BenchPlanStep)
    ->Args({32, 4, static_cast<int>(Assignment::kLbMini)})
    ->Args({256, 32, static_cast<int>(Assignment::kLbMini)})
    ->Args({2048, 32, static_cast<int>(Assignment::kLbMini)})
    ->Args({2048, 32, static_cast<int>(Assignment::kLbMicro)})
    ->Args({2048, 32, static_cast<int>(Assignment::kSpeedWeighted)})
    ->Unit(benchmark::kMillisecond);

void BenchBalancedSplit(benchmark::State& state) {
  const CostModel cost = FlopCost(*NamedShape("1.5b"));
  std::vector<double> costs;
  for (const SampleLength& sample : LongAlign(state.range(0))) {
    costs.push_back(cost.Sequence(sample.tokens));
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(BalancedSplit(costs, static_cast<int>(state.range(1))));
  }
}
BENCHMARK(BenchBalancedSplit)->Args({2048, 32})->Unit(benchmark::kMillisecond);

// A step of draws, each made when the worker is free and each as long as predicted. Arguments:
// samples, workers.
void BenchDrawQueue(benchmark::State& state) {
  const auto workers = static_cast<int>(state.range(1));
  const StepPlan plan =
      *PlanStep(LongAlign(state.range(0)), {.workers = workers, .microbatch_tokens = 65536},
                FlopCost(*NamedShape("1.5b")));
  for (auto _ : state) {
    DrawQueue queue(plan, {}, 1);
    queue.Start(0);
    std::priority_queue<std::pair<double, int>, std::vector<std::pair<double, int>>, std::greater<>>
        free;
    std::vector<int64_t> numbers(static_cast<size_t>(workers), 0);
    for (int worker = 0; worker < workers; ++worker) {
      const auto given = queue.Given(worker);
      free.emplace(given.empty() ? 0.0 : given[0]->cost, worker);
    }
    while (!free.empty()) {
      const auto [now, worker] = free.top();
      free.pop();
      const Microbatch* pack = *queue.Draw(worker, ++numbers[static_cast<size_t>(worker)], now, 0);
      if (pack != nullptr) {
        free.emplace(now + pack->cost, worker);
      }
    }
  }
}
BENCHMARK(BenchDrawQueue)->Args({256, 32})->Args({4096, 1024})->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shoal::plan

BENCHMARK_MAIN();

// How long planning takes: it must stay far below a step.
#include "benchmark/benchmark.h"
#include "plan/balanced_split.h"
#include "plan/lengths.h"
#include "plan/step_plan.h"

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
  PlanOptions options{.workers = static_cast<int>(state.range(1)),
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

}  // namespace
}  // namespace shoal::plan

BENCHMARK_MAIN();

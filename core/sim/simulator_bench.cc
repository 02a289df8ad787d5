// How long simulating takes: the bar is 1,024 workers and 1,000 steps in under a minute on one
// core, including planning. A benchmark's time is that of one step, so the bar is 60 ms.
#include "benchmark/benchmark.h"
#include "core/plan/step/lengths.h"
#include "core/sim/comparison.h"
#include "core/sim/simulator.h"

namespace shoal::sim {
namespace {

Minibatches Draw(int64_t count) {
  return DrawnMinibatches(*plan::ParseLengths("longalign"), count, 1);
}

Simulator MakeSimulator(int64_t workers) {
  plan::Job job;
  job.data.microbatch_tokens = 65536;
  return Simulator({.spec = *plan::NamedShape("1.5b"),
                    .job = job,
                    .policy = {plan::Residency::kLayer, plan::PushPolicy::kMicrobatch},
                    .cluster = {.devices = {{.count = workers}},
                                .devices_per_node = 8,
                                .device_link = {250e9, 1e-5},
                                .node_link = {100e9, 3e-5}}});
}

// Argument: workers, each with 4 samples per step. A new minibatch each time.
void Steps(benchmark::State& state, plan::Synchronization synchronization,
           plan::Assignment assignment) {
  const Simulator simulator = MakeSimulator(state.range(0));
  const Minibatches minibatches = Draw(4 * state.range(0));
  int64_t step = 0;
  for (auto _ : state) {
    state.PauseTiming();
    const auto samples = *minibatches(++step);
    state.ResumeTiming();
    benchmark::DoNotOptimize(simulator.Run(samples, assignment, synchronization));
  }
}

// Without planning.
void PlannedSteps(benchmark::State& state, plan::Synchronization synchronization) {
  const Simulator simulator = MakeSimulator(state.range(0));
  const auto samples = *Draw(4 * state.range(0))(1);
  const auto plan = plan::PlanStep(samples,
                                   {.workers = static_cast<int>(state.range(0)),
                                    .microbatch_tokens = 65536,
                                    .assignment = plan::Assignment::kLocalSort,
                                    .equal_counts = true},
                                   plan::FlopCost(simulator.options().spec));
  for (auto _ : state) {
    benchmark::DoNotOptimize(simulator.RunPlan(*plan, synchronization));
  }
}

void Workers(benchmark::internal::Benchmark* benchmark) {
  benchmark->Arg(8)->Arg(32)->Arg(1024)->Unit(benchmark::kMillisecond)->MinTime(0.2);
}

using plan::Assignment;
using plan::Synchronization;
BENCHMARK_CAPTURE(Steps, layer_lb_micro, Synchronization::kLayer, Assignment::kLbMicro)
    ->Apply(Workers);
BENCHMARK_CAPTURE(Steps, step_lb_micro, Synchronization::kStep, Assignment::kLbMicro)
    ->Apply(Workers);
BENCHMARK_CAPTURE(Steps, step_lb_mini, Synchronization::kStep, Assignment::kLbMini)->Apply(Workers);
BENCHMARK_CAPTURE(Steps, step_dynamic, Synchronization::kStep, Assignment::kDynamic)
    ->Apply(Workers);
BENCHMARK_CAPTURE(PlannedSteps, layer, Synchronization::kLayer)->Apply(Workers);
BENCHMARK_CAPTURE(PlannedSteps, step, Synchronization::kStep)->Apply(Workers);

}  // namespace
}  // namespace shoal::sim

BENCHMARK_MAIN();

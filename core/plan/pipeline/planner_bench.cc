// How long it takes to choose a pipeline's schedule, and for a stage to build it in each step.
#include "benchmark/benchmark.h"
#include "core/base/bytes.h"
#include "core/base/random.h"
#include "core/plan/pipeline/planner.h"

namespace shoal::plan {
namespace {

// Arguments: stages, chunks, microbatches, GiB of activations on each device (0: everything fits).
PipelineRequest RequestOf(const benchmark::State& state) {
  PipelineRequest request{.spec = *NamedShape("32b"),
                          .compute = DType::kBF16,
                          .stages = static_cast<int>(state.range(0)),
                          .chunks = static_cast<int>(state.range(1)),
                          .pace = {.forward_flops = 400e12,
                                   .backward_input_flops = 400e12,
                                   .backward_weights_flops = 400e12,
                                   .elementwise_bytes_per_second = 2e12,
                                   .offload_bytes_per_second = 50e9,
                                   .reload_bytes_per_second = 50e9,
                                   .message_bytes_per_second = 100e9,
                                   .message_latency_seconds = 20e-6}};
  // As deep as the shape requires.
  request.spec.layers = std::max<int64_t>(request.spec.layers, request.stages * request.chunks);
  Random random(1);
  for (int64_t i = 0; i < state.range(2); ++i) {
    const int64_t lengths[] = {random.Between(2000, 8000), random.Between(100, 8000)};
    request.microbatches.push_back(SizeOfSequences(lengths));
  }
  if (state.range(3) > 0) {
    request.budgets.assign(state.range(0), {.device = state.range(3) * kGiB});
  }
  return request;
}

void BenchPlanPipeline(benchmark::State& state) {
  const PipelineRequest request = RequestOf(state);
  for (auto _ : state) {
    const auto plan = PlanPipeline(request);
    if (plan.ok()) {
      state.SetLabel(ToString(plan->chosen().choice.schedule));
    } else {
      state.SetLabel("nothing fits");
    }
  }
}
BENCHMARK(BenchPlanPipeline)
    ->Args({4, 4, 16, 0})
    ->Args({8, 4, 64, 0})
    ->Args({8, 4, 64, 20})
    ->Args({8, 0, 64, 20})
    ->Args({32, 8, 256, 0})
    ->Args({32, 8, 256, 100})
    ->Args({32, 8, 256, 40})
    ->Args({32, 8, 256, 20})
    ->Args({32, 8, 256, 10})
    ->Args({32, 8, 256, 5})
    ->Args({32, 8, 256, 1})
    ->Unit(benchmark::kMillisecond);

void BenchBuildChosenSchedule(benchmark::State& state) {
  const PipelineRequest request = RequestOf(state);
  const auto plan = PlanPipeline(request);
  PipelineChoice choice = plan->chosen().choice;
  choice.offloaded_chunks = choice.chunks / 2.0;
  for (auto _ : state) {
    benchmark::DoNotOptimize(BuildChosenSchedule(request.spec, request.compute, choice,
                                                 request.microbatches, request.pace));
  }
}
BENCHMARK(BenchBuildChosenSchedule)
    ->Args({4, 4, 16, 0})
    ->Args({8, 4, 64, 0})
    ->Args({32, 8, 256, 0})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shoal::plan

BENCHMARK_MAIN();

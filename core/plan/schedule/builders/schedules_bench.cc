// How long it takes to build and time schedules and add offloads to them: the planner does all of
// it for tens of candidates, and every stage for its own schedule in every step.
#include "benchmark/benchmark.h"
#include "core/plan/schedule/builders/builders.h"
#include "core/plan/schedule/builders/offload.h"
#include "core/plan/schedule/schedule_check.h"
#include "core/plan/schedule/schedule_simulation.h"

namespace shoal::plan {
namespace {

constexpr int kStages = 32;
constexpr int kChunks = 8;
constexpr int kMicrobatches = 256;

const ChunkCost kCost{.offload = 1, .reload = 1, .send_activation = 0.1, .send_gradient = 0.1};

void BenchBuildGrouped(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(GroupedInterleaved(kStages, kChunks, kMicrobatches, 16));
  }
}
BENCHMARK(BenchBuildGrouped)->Unit(benchmark::kMillisecond);

void BenchBuildUniform(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(UniformPipe(kStages, kChunks, kMicrobatches));
  }
}
BENCHMARK(BenchBuildUniform)->Unit(benchmark::kMillisecond);

void BenchBuildZeroBubbleV(benchmark::State& state) {
  for (auto _ : state) {
    benchmark::DoNotOptimize(ZeroBubbleV(kStages, kMicrobatches));
  }
}
BENCHMARK(BenchBuildZeroBubbleV)->Unit(benchmark::kMillisecond);

void BenchCheck(benchmark::State& state) {
  const Schedule schedule = UniformPipe(kStages, kChunks, kMicrobatches);
  for (auto _ : state) {
    benchmark::DoNotOptimize(CheckSchedule(schedule));
  }
}
BENCHMARK(BenchCheck)->Unit(benchmark::kMillisecond);

void BenchSimulate(benchmark::State& state) {
  const Schedule schedule = UniformPipe(kStages, kChunks, kMicrobatches);
  const ScheduleCosts costs(schedule.shape, kCost);
  for (auto _ : state) {
    benchmark::DoNotOptimize(SimulateSchedule(schedule, costs, {}, Spans::kNone));
  }
}
BENCHMARK(BenchSimulate)->Unit(benchmark::kMillisecond);

void BenchAddOffloads(benchmark::State& state) {
  const Schedule schedule = UniformPipe(kStages, kChunks, kMicrobatches);
  const ScheduleCosts costs(schedule.shape, kCost);
  const OffloadChoice choice = FirstChunks(schedule.shape, static_cast<int>(state.range(0)));
  for (auto _ : state) {
    benchmark::DoNotOptimize(AddOffloads(schedule, costs, choice));
  }
}
BENCHMARK(BenchAddOffloads)->Arg(4)->Arg(8)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shoal::plan

BENCHMARK_MAIN();
